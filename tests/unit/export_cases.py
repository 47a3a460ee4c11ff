"""Tiny models, and the command under test."""

import os
from pathlib import Path

import torch
from safetensors.torch import load_file
from typer import Typer
from typer.testing import CliRunner

from ascend_quant.commands.export import export

SMALL = {
    "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 160, "vocab_size": 150, "initializer_range": 0.5,
}  # fmt: skip
MODELS = {
    "qwen2": {**SMALL, "tie_word_embeddings": True},
    "qwen3": {**SMALL, "head_dim": 48, "tie_word_embeddings": False},
    "qwen3_moe": {
        **SMALL, "head_dim": 32, "tie_word_embeddings": False, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 96,
    },
}  # fmt: skip


class Harm:
    """What a pickle can do: here, make a folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def write_model(name: str, out: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **MODELS[name])).to(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms are ones and biases zeros: any mix-up would go unseen
                parameter.normal_()
    model.save_pretrained(out)
    (out / "tokenizer_config.json").write_text("{}")


def run(*arguments: str | Path):
    app = Typer()
    app.command()(export)
    return CliRunner().invoke(app, [str(one) for one in arguments])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
