"""Prompts as token ids, and the ids that end a response, so that engines need no tokenizer.

A model without a tokenizer is asked random tokens in the place of the built-in prompts; the log says so.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ascend_quant.documents import BadDocument, read_json
from ascend_quant.mismatch.prompts import Prompt, PromptError, built_in

logger = logging.getLogger(__name__)

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
RANDOM_TOKENS = 32


class ModelError(ValueError):
    """A model whose configuration, or whose tokenizer, cannot be read, or says what no model has."""


def load_config(model: str) -> Any:
    """The model's transformers configuration.

    Raises:
        ModelError: with the reason in a line.
    """
    from transformers import AutoConfig

    check_json(model, "config.json")
    try:
        return AutoConfig.from_pretrained(model)
    except Exception as error:  # whatever transformers meets in a config of the wrong kinds
        raise ModelError(f"model {model!r:.200}: its configuration cannot be read: {reason(error)}") from error


def vocabulary_of(model: str, config: Any) -> int:
    """How many token ids the model knows.

    Raises:
        ModelError: the configuration does not say so.
    """
    try:
        found = config.get_text_config().vocab_size
    except (AttributeError, ValueError) as error:
        raise ModelError(f"model {model!r:.200}: no vocab_size in its configuration: {reason(error)}") from error
    if type(found) is not int or not 0 < found < 1 << 31:
        raise ModelError(f"model {model!r:.200}: vocab_size must be a positive whole number, not {found!r:.80}")
    return found


def check_json(model: str, name: str) -> None:
    """A JSON file of a model's folder, where it has one, holds an object; raises ModelError otherwise."""
    if os.path.isfile(file := Path(model) / name):
        try:
            read_json(file)
        except BadDocument as error:
            raise ModelError(str(error)) from error


def reason(error: Exception) -> str:
    """Of an exception, in one line that is not long."""
    return f"{type(error).__name__}: {' '.join(str(error).split()):.500}"


def load_tokenizer(model: str) -> Any | None:
    """The model's tokenizer; None if its folder has none (transformers would invent one)."""
    from transformers import AutoTokenizer

    folder = Path(model)
    if os.path.isdir(folder) and not any((folder / name).exists() for name in TOKENIZER_FILES):
        return None
    for name in TOKENIZER_FILES[:2]:
        check_json(model, name)
    try:
        return AutoTokenizer.from_pretrained(model)
    except Exception as error:  # whatever transformers and tokenizers meet in files of the wrong kinds
        raise ModelError(f"model {model!r:.200}: its tokenizer cannot be read: {reason(error)}") from error


def encode(prompts: Sequence[Prompt] | None, tokenizer: Any | None, vocabulary: int, seed: int) -> list[list[int]]:
    """Token ids of each prompt.

    Args:
        prompts: None for the built-in ones.
        tokenizer: None if the model has none.
        vocabulary: how many token ids the model knows.
        seed: of the random prompts of a model without tokenizer.

    Raises:
        PromptError: a prompt needs a tokenizer or a chat template that is not there or fails, has no token in this
            vocabulary, or ids outside of it.
    """
    if prompts is None and tokenizer is None:
        logger.warning("the model has no tokenizer: the prompts are random tokens; give --prompts with token ids")
        shape, generator = (len(built_in()), RANDOM_TOKENS), torch.Generator().manual_seed(seed)
        return torch.randint(vocabulary, shape, generator=generator).tolist()
    if prompts is None:
        prompts = built_in() if tokenizer.chat_template else [chat[0]["content"] for chat in built_in()]
    return [_encode(prompt, tokenizer, vocabulary) for prompt in prompts]


def stop_tokens(model: str, config: Any, tokenizer: Any | None) -> list[int]:
    """Every token id that the model's configurations or its tokenizer call the end.

    Raises:
        ModelError: what they call so is no token id.
    """
    from transformers import GenerationConfig

    check_json(model, "generation_config.json")
    said = [getattr(config, "eos_token_id", None), getattr(tokenizer, "eos_token_id", None)]
    try:
        said.append(GenerationConfig.from_pretrained(model).eos_token_id)
    except OSError:
        logger.info("model %r has no generation_config.json", model)
    except Exception as error:  # whatever transformers meets in one of the wrong kinds
        raise ModelError(f"model {model!r:.200}: generation_config.json cannot be read: {reason(error)}") from error
    ids = [token for ids in said for token in (ids if isinstance(ids, list) else [ids]) if token is not None]
    for token in ids:
        if type(token) is not int or token < 0:
            raise ModelError(f"model {model!r:.200}: eos_token_id must be a token id, or some, not {token!r:.80}")
    return sorted(set(ids))


def _encode(prompt: Prompt, tokenizer: Any | None, vocabulary: int) -> list[int]:
    shown = f"prompt {prompt!r:.80}"
    if isinstance(prompt, list) and isinstance(prompt[0], int):
        if max(prompt) >= vocabulary:
            raise PromptError(f"{shown}: token id {max(prompt)} is outside the model's vocabulary of {vocabulary}")
        return prompt
    if tokenizer is None:
        raise PromptError(f"{shown}: the model has no tokenizer; give token ids")
    if not isinstance(prompt, str) and not tokenizer.chat_template:
        raise PromptError(f"{shown}: the model's tokenizer has no chat template; give strings")
    try:
        ids = _token_ids(prompt, tokenizer)
    except Exception as error:  # a chat template is a program of the model's
        raise PromptError(f"{shown}: the model's chat template, or its tokenizer, fails: {reason(error)}") from error
    if not ids:
        raise PromptError(f"{shown}: the model's tokenizer has no token for it; give --prompts that it knows")
    if max(ids) >= vocabulary:
        raise PromptError(f"{shown}: its token {max(ids)} is outside the model's vocabulary of {vocabulary}")
    return ids


def _token_ids(prompt: str | list[dict[str, Any]], tokenizer: Any) -> list[int]:
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)
