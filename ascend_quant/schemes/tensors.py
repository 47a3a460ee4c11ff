"""Tensors as sent by trainers and stored in files: dtypes, and a layer's experts, stacked or single."""

from collections.abc import Iterator

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
