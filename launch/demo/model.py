"""The demo's models and their tokenizer: the real Qwen2 and Qwen3-MoE architectures, with a token for each character.

The sizes are those that a CPU trains in a minute. `vocab_size` equals the tokenizer's length: verl masks
padding ids in vLLM only, which would look like a mismatch.

transformers >= 5 loads every `model_type=qwen2` tokenizer as a ByteLevel BPE, whatever was saved, so this one is a
ByteLevel BPE without merges, which transformers, vLLM and verl read alike. verl wants "\\n" to be one token and
`<|im_end|>` to exist.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPACE, NEWLINE = "Ġ", "Ċ"  # how ByteLevel spells " " and "\n"
SUMS = "0123456789+="  # the alphabet of addition
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
MODELS = ("qwen2", "qwen3-moe")
TINY = {  # 0.3 M parameters
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 64,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True}


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


def build_model(name: str, seed: int, shape: Mapping[str, int] = TINY, alphabet: str = SUMS) -> Any:
    """A randomly initialised float32 model; the same seed gives the same weights."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3MoeConfig

    tokens = vocabulary(alphabet)
    numbers = {
        **shape,
        "vocab_size": len(tokens),
        "tie_word_embeddings": False,
        "pad_token_id": tokens[PAD],
        "eos_token_id": tokens[END],
        "bos_token_id": None,
    }
    torch.manual_seed(seed)
    config = Qwen2Config(**numbers) if name == "qwen2" else Qwen3MoeConfig(**numbers, **EXPERTS)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)
