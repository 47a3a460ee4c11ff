"""The demo's models: the real Qwen2 and Qwen3-MoE architectures, in sizes that a CPU or a GPU trains in a minute.

`vocab_size` equals the tokenizer's length: verl masks padding ids in vLLM only, which would look like a mismatch.
"""

from collections.abc import Mapping
from typing import Any

from launch.demo.tokenizer import END, PAD, SUMS, vocabulary

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
SMALL = {  # 91 M parameters; every matrix fits the tiles of the GPU's kernels, and heads of 64 its attention
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 512,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True}


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
