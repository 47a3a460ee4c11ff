"""Which of the trainer's float32 weights are rounded to BF16 before they are sent: those that a BF16 engine rounds too.

verl 0.9.1's FSDP engines hand out the float32 weights that the optimizer holds: 30 GB for a 7B model, whose embedding
(2,079 MiB) does not fit into verl's bucket of 2,048 MiB: where devices share no memory (IPC), an assertion ends the
run. A refit rounds to BF16 before it quantizes, and embeddings and heads are BF16 in the engine: the same bytes arrive.

An engine keeps some parameters in float32: routers and their correction biases, decay rates, scales of norms. They are
few and small, so whatever is not known to be rounded is sent as it is: vectors, routers, what has no `.weight` in its
name, and what the trainer's model itself keeps in float32 (transformers' `_keep_in_fp32_modules`).
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ascend_quant.names import HEADS, ROUTERS, keeps_its_dtype
from ascend_quant.refit.sent import NamedTensor, checked

ENGINE_DTYPE = "bfloat16"  # of verl's rollout.dtype; with another one, nothing is rounded
KEPT_BY_MODEL = ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")


def rounded(weights: Iterable[NamedTensor], kept: Iterable[str] = ()) -> Iterator[NamedTensor]:
    """The weights, in float32 only what the engine may keep so; the others are new BF16 tensors on the same device.

    Args:
        kept: parts of names, whole between dots, whose parameters stay as they are.

    Raises:
        RefitError: see `sent.check_sent`.
    """
    kept = [*kept]
    for name, tensor in checked(weights):
        yield name, tensor.to(torch.bfloat16) if is_rounded(name, tensor, kept) else tensor


def is_rounded(name: str, tensor: torch.Tensor, kept: Iterable[str] = ()) -> bool:
    """Whether this is a float32 matrix that a BF16 engine quantizes or holds in BF16, or all experts' of a layer.

    Args:
        kept: see `rounded`.
    """
    layer, _, leaf = name.rpartition(".")
    if tensor.dtype != torch.float32 or any(_is_part(part, name) for part in kept):
        return False
    if tensor.dim() == 3:
        return layer.endswith("experts")
    return leaf == "weight" and tensor.dim() == 2 and not _keeps_float32(layer)


def kept_by(module: Any) -> list[str]:
    """What a trainer's model keeps in float32, as parts of names; nothing for one that does not say (Megatron's)."""
    return [part for attribute in KEPT_BY_MODEL for part in getattr(module, attribute, None) or ()]


def _keeps_float32(layer: str) -> bool:
    *_, owner, last = ("", *layer.split("."))
    return owner in ROUTERS or (keeps_its_dtype(layer) and last not in HEADS)


def _is_part(part: str, name: str) -> bool:
    return re.search(rf"(^|\.){re.escape(part)}($|\.)", name) is not None
