"""Two checkpoints of a small Qwen2 model with seeded weights, as if a training step lay between them.

`python -m launch.smoke.models FOLDER` writes FOLDER/start and FOLDER/then. Wider than the demo's model, because not
every device's attention takes heads of 32; its weights are large enough that answers are not all the same.
"""

import sys
from pathlib import Path

CONFIG = {
    "vocab_size": 512,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": 0,
}


def write(folder: Path) -> None:
    """Both checkpoints, in BF16; the same bytes wherever it is called."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    for seed, name in enumerate(("start", "then")):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(Qwen2Config(**CONFIG))
        model.to(torch.bfloat16).save_pretrained(folder / name)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
