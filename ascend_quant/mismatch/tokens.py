"""Prompts as token ids, and the ids that end a response, so that engines need no tokenizer.

A model without a tokenizer is asked random tokens in the place of the built-in prompts; the log says so.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ascend_quant.mismatch.prompts import Prompt, PromptError, built_in

logger = logging.getLogger(__name__)

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
RANDOM_TOKENS = 32


class ModelError(ValueError):
    """A model whose configuration or tokenizer cannot be read."""


@dataclass(frozen=True)
class Vocabulary:
    """What a model's files say of its tokens.

    Attributes:
        size: how many token ids the model knows.
        stop: every token id that its configurations or its tokenizer call the end.
        tokenizer: transformers'; None if the model has none.
    """

    size: int
    stop: list[int]
    tokenizer: Any | None


def load(model: str) -> Vocabulary:
    """The vocabulary of a folder or a hub id.

    Raises:
        ModelError: with the reason in a line.
    """
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    folder = Path(model)
    # transformers would invent a tokenizer for a folder that has none
    without = os.path.isdir(folder) and not any((folder / name).exists() for name in TOKENIZER_FILES)
    try:
        config = AutoConfig.from_pretrained(model)
        tokenizer = None if without else AutoTokenizer.from_pretrained(model)
        said = [getattr(config, "eos_token_id", None), getattr(tokenizer, "eos_token_id", None)]
        try:
            said.append(GenerationConfig.from_pretrained(model).eos_token_id)
        except OSError:
            logger.info("model %r has no generation_config.json", model)
        size = config.get_text_config().vocab_size
    except Exception as error:  # whatever transformers meets in files of the wrong kinds
        raise ModelError(f"model {model!r:.200}: cannot be read: {_reason(error)}") from error
    stop = {token for ids in said for token in (ids if isinstance(ids, list) else [ids]) if token is not None}
    return Vocabulary(size, sorted(stop), tokenizer)


def encode(prompts: Sequence[Prompt] | None, vocabulary: Vocabulary) -> list[list[int]]:
    """Token ids of each prompt.

    Args:
        prompts: None for the built-in ones.

    Raises:
        PromptError: a prompt needs a tokenizer or a chat template that is not there or fails, has no token in this
            vocabulary, or ids outside of it.
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
        raise PromptError(f"{shown}: the model has no tokenizer; give token ids")
    elif not isinstance(prompt, str) and not tokenizer.chat_template:
        raise PromptError(f"{shown}: the model's tokenizer has no chat template; give strings")
    else:
        try:
            ids = _token_ids(prompt, tokenizer)
        except Exception as error:  # a chat template is a program of the model's
            raise PromptError(f"{shown}: the model's chat template or tokenizer fails: {_reason(error)}") from error
    if not ids:
        raise PromptError(f"{shown}: the model's tokenizer has no token for it; give --prompts that it knows")
    if max(ids) >= vocabulary.size:
        raise PromptError(f"{shown}: token id {max(ids)} is outside the model's vocabulary of {vocabulary.size}")
    return ids


def _token_ids(prompt: str | list[dict[str, Any]], tokenizer: Any) -> list[int]:
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)


def _reason(error: Exception) -> str:
    """An exception in one line that is not long."""
    return f"{type(error).__name__}: {' '.join(str(error).split()):.500}"
