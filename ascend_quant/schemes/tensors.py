"""Tensors as sent by trainers and stored in files: dtypes, buckets, and a layer's experts, stacked or single."""

from collections.abc import Iterable, Iterator

import torch

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)  # float64 only if finite in BF16


def one_by_one(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Return the tensor itself, or the experts of a stack under their checkpoint names.

    Args:
        tensor: a stack of experts is (E, 2 * intermediate, hidden) for gate_up_proj, (E, hidden, intermediate) for
            down_proj.
    """
    layer, _, leaf = name.rpartition(".experts.")
    if tensor.dim() != 3 or leaf not in ("gate_up_proj", "down_proj"):
        yield name, tensor
        return
    for expert, matrix_NK in enumerate(tensor):
        if leaf == "down_proj":
            yield f"{layer}.experts.{expert}.down_proj.weight", matrix_NK
        else:
            gate, up = matrix_NK.chunk(2)
            yield f"{layer}.experts.{expert}.gate_proj.weight", gate
            yield f"{layer}.experts.{expert}.up_proj.weight", up


def buckets(tensors: Iterable[tuple[str, torch.Tensor]], limit: int) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Yield tensors in their order, as many at a time as `limit` bytes hold; a larger tensor comes alone."""
    bucket: list[tuple[str, torch.Tensor]] = []
    size = 0
    for name, tensor in tensors:
        if bucket and size + tensor.nbytes > limit:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, tensor))
        size += tensor.nbytes
    if bucket:
        yield bucket
