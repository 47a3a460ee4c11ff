"""Small models of one layer, dense and with experts, for every vllm-ascend that the tests run."""

from pathlib import Path

from transformers import Qwen3Config, Qwen3MoeConfig
from vllm.config import ModelConfig

DENSE, MOE = "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"
VOCABULARY, HIDDEN, INTERMEDIATE, HEAD = 128, 64, 64, 32
EXPERTS, EXPERTS_A_TOKEN = 4, 2
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": HEAD,
    "max_position_embeddings": 64,
}
CONFIGS = {
    DENSE: Qwen3Config(**SIZES),
    MOE: Qwen3MoeConfig(
        **SIZES,
        moe_intermediate_size=INTERMEDIATE,
        num_experts=EXPERTS,
        num_experts_per_tok=EXPERTS_A_TOKEN,
        norm_topk_prob=True,
    ),
}


def model_config(folder: Path, architecture: str, **options) -> ModelConfig:
    """Of a small model, which is written there if it is not there yet."""
    path = folder / "model"
    if not path.exists():
        write_model(path, architecture)
    return ModelConfig(
        model=str(path),
        tokenizer=str(path),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=64,
        **options,
    )


def write_model(path: Path, architecture: str) -> None:
    """A model without weights; before several ranks read it."""
    config = CONFIGS[architecture]
    config.architectures = [architecture]
    config.save_pretrained(path)
