"""Prompts for the engines, as token ids, so that engines need no tokenizer: built-in examples, or a file.

A text file has one prompt per line. JSON lines and parquet files have a column `prompt`: a string, which is used
unchanged; chat messages, to which the tokenizer's chat template is applied (as in verl's data sets); or token ids. For
a model without a tokenizer, the built-in prompts are replaced by random tokens, and the log says so.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from ascend_quant.files.documents import is_object, parse_json, read_text
from ascend_quant.profile.checkpoints import BadCheckpoint
from ascend_quant.terminal.exits import first_line

logger = logging.getLogger(__name__)

EXAMPLES = (
    "Natalia sold 48 clips in April, and half as many in May. How many clips did she sell in the two months?",
    "小明有 24 个苹果,他把其中的三分之一送给了朋友,又买了 5 个。他现在有多少个苹果?请写出推理过程。",
    "Let f(x) = x^3 - 6x^2 + 9x + 1. Find all local extrema of f, step by step.",
    "一列火车以每小时 80 公里的速度行驶 2.5 小时,然后以每小时 100 公里的速度行驶 1.5 小时,求平均速度。",
    "Prove that the sum of the first n odd numbers is n^2.",
    "解方程组 2x + 3y = 12, x - y = 1,并检验结果。",
    "How many integers between 1 and 1000 are divisible by 3 or by 5, but not by both?",
    "一个袋子里有 4 个红球和 6 个白球,不放回地取出 2 个,求两个球颜色相同的概率。",
    "Write a Python function that returns the k-th smallest element of an unsorted list in O(n) expected time.",
    "用 Python 写一个函数,判断一个字符串是不是回文,并给出 3 个测试用例。",
    "Explain in 3 paragraphs why the sky is blue and why sunsets are red.",
    "请用 200 字左右介绍一下唐代诗人李白的生平和代表作。",
    "Write a short letter to a landlord, asking for the heating to be repaired before December 1.",
    "请列出 5 条提高睡眠质量的建议,并简要说明每条的原因。",
    "Compare TCP and UDP in 4 points, and give an application for which each is the better choice.",
    "把下面的句子翻译成英文:2008 年夏天,北京举办了第 29 届奥运会。",
)
COLUMN = "prompt"
JSON_LINES = (".jsonl", ".json")
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model")
RANDOM_TOKENS = 32

Prompt = str | list[dict[str, Any]] | list[int]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary of a model, from its files.

    Attributes:
        size: number of token ids of the model.
        stop: all end-of-sequence token ids of its configurations and its tokenizer.
        tokenizer: transformers'; None if the model has none.
    """

    size: int
    stop: list[int]
    tokenizer: Any | None


def built_in() -> list[Prompt]:
    """Return the examples, as chats of one message."""
    return [[{"role": "user", "content": text}] for text in EXAMPLES]


def read(path: Path) -> list[Prompt]:
    """Read the prompts of a file.

    Raises:
        BadCheckpoint, BadDocument: the file or one of its rows is invalid; the message names it.
    """
    if path.suffix == ".parquet":
        found = [_checked(value, f"{path}, row {number}") for number, value in enumerate(_parquet(path), start=1)]
    else:
        lines = [(number, line) for number, line in enumerate(read_text(path).split("\n"), start=1) if line.strip()]
        found = [line for _, line in lines]
        if path.suffix in JSON_LINES:
            found = [_of_json(line, f"{path}, line {number}") for number, line in lines]
    if not found:
        raise BadCheckpoint(f"{path}: contains no prompt")
    return found


def _parquet(path: Path) -> list[Any]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise BadCheckpoint(f"{path}: reading parquet files needs pyarrow, which is not installed") from error
    try:
        with parquet.ParquetFile(path) as file:
            if COLUMN not in (names := file.schema_arrow.names):
                raise BadCheckpoint(f"{path}: has no column {COLUMN!r}; it has {', '.join(names) or 'none'}")
            return file.read([COLUMN])[COLUMN].to_pylist()
    except (ArrowException, OSError) as error:
        raise BadCheckpoint(f"{path}: {first_line(error)}") from error


def _of_json(line: str, where: str) -> Prompt:
    row = parse_json(line, where)
    return _checked(row.get(COLUMN) if is_object(row) else None, where)


def evenly(items: Sequence[Item], count: int) -> list[Item]:
    """Return at most `count` evenly spaced items, including the first."""
    if len(items) <= count:
        return list(items)
    return [items[i * len(items) // count] for i in range(count)]


def _checked(value: Any, where: str) -> Prompt:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value:
        if all(isinstance(message, dict) and {"role", "content"} <= message.keys() for message in value):
            return value
        if all(type(token) is int and token >= 0 for token in value):
            return value
    raise BadCheckpoint(f"{where}: {COLUMN!r} is {value!r:.80}; it must be a string, chat messages or token ids")


def load(model: str) -> Vocabulary:
    """Load the vocabulary of a folder or a hub id.

    Raises:
        BadCheckpoint: it cannot be read; the message gives the reason in one line.
    """
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    folder = Path(model)
    if model.startswith(("/", ".")) and not folder.is_dir():  # transformers would treat it as a hub id
        raise BadCheckpoint(f"model {model!r:.200}: this folder does not exist")
    # transformers would create a tokenizer for a folder without one
    without = folder.is_dir() and not any((folder / name).exists() for name in VOCABULARIES)
    try:
        config = AutoConfig.from_pretrained(model)
        tokenizer = None if without else AutoTokenizer.from_pretrained(model)
        said = [getattr(config, "eos_token_id", None), getattr(tokenizer, "eos_token_id", None)]
        try:
            said.append(GenerationConfig.from_pretrained(model).eos_token_id)
        except OSError:
            logger.info("model %r has no generation_config.json", model)
        size = config.get_text_config().vocab_size
    except Exception as error:  # transformers raises various exceptions for invalid files
        raise BadCheckpoint(f"model {model!r:.200}: cannot be read: {first_line(error)}") from error
    stop = {token for ids in said for token in (ids if isinstance(ids, list) else [ids]) if token is not None}
    return Vocabulary(size, sorted(stop), tokenizer)


def encode(prompts: Sequence[Prompt] | None, vocabulary: Vocabulary) -> list[list[int]]:
    """Return token ids of each prompt.

    Args:
        prompts: None for the built-in ones.

    Raises:
        BadCheckpoint: a prompt needs a tokenizer or a chat template that is missing or fails, has no tokens, or has ids
            outside of the vocabulary.
    """
    tokenizer = vocabulary.tokenizer
    if prompts is None and tokenizer is None:
        logger.warning("the model has no tokenizer: the prompts are random tokens; give --prompts with token ids")
        shape, generator = (len(built_in()), RANDOM_TOKENS), torch.Generator().manual_seed(0)
        return torch.randint(vocabulary.size, shape, generator=generator).tolist()
    if prompts is None:
        prompts = built_in() if tokenizer.chat_template else [chat[0]["content"] for chat in built_in()]
    return [_encode(prompt, vocabulary) for prompt in prompts]


def _encode(prompt: Prompt, vocabulary: Vocabulary) -> list[int]:
    shown, tokenizer = f"prompt {prompt!r:.80}", vocabulary.tokenizer
    if isinstance(prompt, list) and isinstance(prompt[0], int):
        ids = prompt
    elif tokenizer is None:
        raise BadCheckpoint(f"{shown}: the model has no tokenizer; give token ids")
    elif not isinstance(prompt, str) and not tokenizer.chat_template:
        raise BadCheckpoint(f"{shown}: the model's tokenizer has no chat template; give strings")
    else:
        try:
            ids = _token_ids(prompt, tokenizer)
        except Exception as error:  # a chat template is a program
            raise BadCheckpoint(
                f"{shown}: the model's chat template or tokenizer fails: {first_line(error)}"
            ) from error
    if not ids:
        raise BadCheckpoint(f"{shown}: the model's tokenizer has no token for this text; use other --prompts")
    if max(ids) >= vocabulary.size:
        raise BadCheckpoint(f"{shown}: token id {max(ids)} is outside the model's vocabulary of {vocabulary.size}")
    return ids


def _token_ids(prompt: str | list[dict[str, Any]], tokenizer: Any) -> list[int]:
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)
