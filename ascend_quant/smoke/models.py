"""Small models with seeded weights: two checkpoints as of two training steps.

Wider than the demo's model, because not every device's attention takes heads of 32; its weights are large enough that
answers are not all the same. What is divided among ranks can be divided by 4.
"""

from pathlib import Path

CONFIG = {
    "vocab_size": 512,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,  # of which 4 ranks hold copies
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": 0,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "head_dim": 128}


def write(folder: Path, moe: bool = False) -> tuple[Path, Path]:
    """FOLDER/start and FOLDER/then, in BF16; the same bytes wherever it is called."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3MoeConfig

    config = Qwen3MoeConfig(**CONFIG, **EXPERTS) if moe else Qwen2Config(**CONFIG)
    for seed, name in enumerate(("start", "then")):
        torch.manual_seed(seed)
        with torch.device("cpu"):
            model = AutoModelForCausalLM.from_config(config)
        model.to(torch.bfloat16).save_pretrained(folder / name)
    return folder / "start", folder / "then"
