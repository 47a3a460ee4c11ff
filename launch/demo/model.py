"""The demo's models: the real Qwen2 and Qwen3-MoE architectures, shrunk until a CPU trains them in seconds.

`vocab_size` equals the tokenizer's length: verl masks padding ids in vLLM only, which would look like a mismatch.
"""

from typing import Any

from launch.demo.tokenizer import END, PAD, VOCABULARY

MODELS = ("qwen2", "qwen3-moe")
SHAPE = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "pad_token_id": VOCABULARY[PAD],
    "eos_token_id": VOCABULARY[END],
    "bos_token_id": None,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True}


def build_model(name: str, seed: int) -> Any:
    """A randomly initialised float32 model; the same seed gives the same weights."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3MoeConfig

    torch.manual_seed(seed)
    config = Qwen2Config(**SHAPE) if name == "qwen2" else Qwen3MoeConfig(**SHAPE, **EXPERTS)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)
