"""A character-level tokenizer that transformers, vLLM and verl read alike.

transformers >= 5 loads every `model_type=qwen2` tokenizer as a ByteLevel BPE, whatever was saved, so this one is a
ByteLevel BPE without merges. verl wants "\\n" to be one token and `<|im_end|>` to exist.
"""

from pathlib import Path
from typing import Any

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPACE, NEWLINE = "Ġ", "Ċ"  # how ByteLevel spells " " and "\n"
SUMS = "0123456789+="  # the alphabet of addition
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def vocabulary(alphabet: str = SUMS) -> dict[str, int]:
    """The tokens and their numbers: the special ones, each character, blank and newline."""
    return {token: index for index, token in enumerate([PAD, START, END, *alphabet, SPACE, NEWLINE])}


def build_tokenizer(alphabet: str = SUMS) -> Any:
    """The tokenizer in memory; `vocab_size` of the model must be `len()` of it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(vocabulary(alphabet), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, eos_token=END, additional_special_tokens=[START]
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def save_tokenizer(folder: Path, alphabet: str = SUMS) -> None:
    """Write the tokenizer's files into a checkpoint folder."""
    build_tokenizer(alphabet).save_pretrained(folder)
