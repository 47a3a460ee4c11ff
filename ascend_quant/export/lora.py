"""Tensors of an FSDP checkpoint under the model's own names; a LoRA adapter is merged into its layers.

    base_model.model.model.norm.weight                                       PEFT's names
    base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight       (N, K)
    base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight   (R, K)
    base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight   (N, R)

A layer becomes W + alpha / R * B A, in float32. verl stores R and alpha next to the shards.
"""

from collections.abc import Iterator
from pathlib import Path

import torch

from ascend_quant.convert.model import Expected
from ascend_quant.export.fsdp import Shards
from ascend_quant.files.documents import read_json
from ascend_quant.profile.checkpoints import BadCheckpoint

META = "lora_train_meta.json"
ADAPTER, PARTS = ".lora_", ("A.default.weight", "B.default.weight")


def merged(shards: Shards, expected: Expected) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor of the model in its training dtype, or in float32 if an adapter is merged into it.

    Raises:
        BadCheckpoint: an adapter has no base model, has more than lora_A and lora_B of linear layers, belongs to a tied
            layer, or has an unknown or wrong rank or alpha; or see `Shards.tensor`.
    """
    adapters = {name for name in shards.names if ADAPTER in name}
    if adapters and len(adapters) == len(shards.names):
        raise BadCheckpoint(
            f"{shards.folder} contains a LoRA adapter without its base model (save_lora_only), so it cannot "
            "be merged; save both with actor.checkpoint.save_lora_only=False"
        )
    layers = {_layer(name, expected) for name in adapters}
    rank, alpha = _rank_and_alpha(shards.folder / META) if layers else (0, 0)
    for name in shards.names:
        if name in adapters:
            continue
        own, w_NK = _own(name), shards.tensor(name)
        if own.removesuffix(".weight") in layers:
            parts = (f"{name.removesuffix('.base_layer.weight')}{ADAPTER}{part}" for part in PARTS)
            a_RK, b_NR = (shards.tensor(part).float() for part in parts)
            if a_RK.shape != (rank, w_NK.shape[1]) or b_NR.shape != (w_NK.shape[0], rank):
                found = f"{tuple(a_RK.shape)} and {tuple(b_NR.shape)}"
                raise BadCheckpoint(f"{own}: its lora_A and lora_B are {found}, but {META} says rank {rank}")
            w_NK = w_NK.float() + (b_NR @ a_RK) * (alpha / rank)
        yield own, w_NK


def _own(name: str) -> str:
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def _layer(name: str, expected: Expected) -> str:
    """Return the layer to which a part of an adapter belongs."""
    layer, _, part = _own(name).partition(ADAPTER)
    if part not in PARTS or layer not in expected.linear:
        raise BadCheckpoint(
            f"{name}: only lora_A and lora_B of linear layers can be merged; merge this adapter with the "
            "library that trained it"
        )
    if f"{layer}.weight" in {*expected.ties, *expected.ties.values()}:
        raise BadCheckpoint(
            f"{name}: config.json ties {layer} to another layer, which merging the adapter would also change; merge it "
            "with PEFT into a model with untied layers"
        )
    return layer


def _rank_and_alpha(path: Path) -> tuple[int, float]:
    said = read_json(path) if path.is_file() else {}
    rank, alpha = (said.get(key) for key in ("r", "lora_alpha"))
    if not all(isinstance(one, int | float) and one > 0 for one in (rank, alpha)):
        raise BadCheckpoint(
            f'{path} has no scaling of the LoRA adapter: write {{"r": RANK, "lora_alpha": ALPHA}} into it, with the '
            "values of the training"
        )
    return rank, alpha
