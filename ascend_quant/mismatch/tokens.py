"""Prompts as token ids, and the ids that end a response, so that engines need no tokenizer.

A model without a tokenizer is asked random tokens in the place of the built-in prompts; the log says so.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ascend_quant.mismatch.prompts import Prompt, PromptError, built_in

logger = logging.getLogger(__name__)

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
RANDOM_TOKENS = 32


class ModelError(ValueError):
    """A model whose configuration cannot be read."""


def load_config(model: str) -> Any:
    """The model's transformers configuration."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ModelError(f"model {model!r}: its configuration cannot be read: {error}") from error


def load_tokenizer(model: str) -> Any | None:
    """The model's tokenizer; None if its folder has none (transformers would invent one)."""
    from transformers import AutoTokenizer

    folder = Path(model)
    if folder.is_dir() and not any((folder / name).exists() for name in TOKENIZER_FILES):
        return None
    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ModelError(f"model {model!r}: its tokenizer cannot be read: {error}") from error


def encode(prompts: Sequence[Prompt] | None, tokenizer: Any | None, vocabulary: int, seed: int) -> list[list[int]]:
    """Token ids of each prompt.

    Args:
        prompts: None for the built-in ones.
        tokenizer: None if the model has none.
        vocabulary: how many token ids the model knows.
        seed: of the random prompts of a model without tokenizer.

    Raises:
        PromptError: a prompt needs a tokenizer or a chat template that is not there, has no token in this
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
    """Every token id that the model's configurations or its tokenizer call the end."""
    from transformers import GenerationConfig

    said = [config.eos_token_id, getattr(tokenizer, "eos_token_id", None)]
    try:
        said.append(GenerationConfig.from_pretrained(model).eos_token_id)
    except OSError:
        logger.info("model %r has no generation_config.json", model)
    ids = {token for ids in said for token in (ids if isinstance(ids, list) else [ids]) if token is not None}
    return sorted(ids)


def _encode(prompt: Prompt, tokenizer: Any | None, vocabulary: int) -> list[int]:
    shown = f"prompt {prompt!r:.80}"
    if isinstance(prompt, list) and isinstance(prompt[0], int):
        if max(prompt) >= vocabulary:
            raise PromptError(f"{shown}: token id {max(prompt)} is outside the model's vocabulary of {vocabulary}")
        return prompt
    if tokenizer is None:
        raise PromptError(f"{shown}: the model has no tokenizer; give token ids")
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt)
    else:
        if not tokenizer.chat_template:
            raise PromptError(f"{shown}: the model's tokenizer has no chat template; give strings")
        text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        ids = tokenizer.encode(text, add_special_tokens=False)
    if not ids:
        raise PromptError(f"{shown}: the model's tokenizer has no token for it; give --prompts that it knows")
    return ids
