"""What the recipe addition-int8 reads, made at once: its data, and its model without the warm-up."""

from pathlib import Path

import torch

from ascend_quant.demo.task import Addition, build_model, save_tokenizer, write_parquet

TENSORS = 2 * 12 + 3  # of the model: two layers of twelve, the embedding, the last norm and the head


def write(data: Path, prompts: int) -> Path:
    """Write data/addition; returns it."""
    folder = data / "addition"
    build_model("qwen2", seed=0).to(torch.bfloat16).save_pretrained(folder / "start")
    save_tokenizer(folder / "start")
    for name in ("train", "test"):
        write_parquet(folder / f"{name}.parquet", prompts=prompts, seed=0, task=Addition())
    return folder
