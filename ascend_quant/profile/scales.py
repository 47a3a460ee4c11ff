"""The quantization of a checkpoint's weights: config.json's groups of layers, and checks of the scales."""

from typing import Literal

import torch
from pydantic import BaseModel, Field, ValidationError

from ascend_quant.profile.checkpoints import BadCheckpoint, Checkpoint
from ascend_quant.schemes.tensors import FLOATS as TORCH_FLOATS

METHOD = "compressed-tensors"
ZERO_POINTS = ("weight_zero_point", "weight_offset")
SAFETENSORS = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64"}
FLOATS = tuple(SAFETENSORS[dtype] for dtype in TORCH_FLOATS)  # safetensors' names


class Group(BaseModel):
    """The weights of some layers, in the terms of compressed-tensors.

    Attributes:
        bits: bits per code.
        strategy: channel, tensor, block, group, or an unknown strategy.
        size: number of adjacent elements that share a scale, if the strategy is group.
        block: rows and columns that share a scale, if the strategy is block.
    """

    type: Literal["int", "float"]
    bits: int = Field(alias="num_bits", strict=True)
    strategy: str
    symmetric: Literal[True] = True
    size: int | None = Field(None, alias="group_size", strict=True)
    block: tuple[int, int] | None = Field(None, alias="block_structure")


def read_groups(checkpoint: Checkpoint) -> list[Group] | None:
    """Return the groups; None if config.json has none, or has another method.

    Raises:
        BadCheckpoint: the groups are malformed or asymmetric.
    """
    section = checkpoint.quantization or {}
    groups = section.get("config_groups")
    if groups is None or section.get("quant_method", METHOD) != METHOD:
        return None
    try:
        return [Group.model_validate(group["weights"]) for group in groups.values()]
    except (ValidationError, AttributeError, KeyError, TypeError) as error:
        where = f"{checkpoint.folder / 'config.json'}: config_groups"
        raise BadCheckpoint(f"{where} cannot be read: {' '.join(str(error).split()):.300}") from error


def check_scale(name: str, scale: torch.Tensor) -> None:
    """Raise BadCheckpoint if a float32 scale of the weight `name` is negative, NaN or infinite."""
    if not bool((scale.isfinite() & (scale >= 0)).all()):
        raise BadCheckpoint(f"{name}: a scale is negative, NaN or infinite")


def check_symmetric(checkpoint: Checkpoint, name: str) -> None:
    """Raise BadCheckpoint if the weight `name` has zero points other than 0."""
    for offset in (f"{name.removesuffix('weight')}{leaf}" for leaf in ZERO_POINTS):
        if offset in checkpoint and bool(checkpoint.tensor(offset).any()):
            raise BadCheckpoint(
                f"{name}: asymmetric quantization ({offset} is not 0) is not supported; only symmetric is"
            )
