"""A model's BF16 weights as a trainer holds them: each once in memory, and changed in place between two syncs."""

from collections.abc import Iterable

import torch

from ascend_quant.schemes.tensors import one_by_one
from benchmarks.models import Model

BUCKET = 512 << 20  # bytes that a trainer sends at a time
NOISE = 1 << 24  # random numbers that a training step draws; they serve every tensor
STEP = 0.001  # how far a training step moves a weight, in standard deviations of its tensor

NamedTensor = tuple[str, torch.Tensor]


class Weights:
    """Weight tensors of a model on one device.

    Args:
        seed: of their values; the same on every device of one kind.
    """

    def __init__(self, model: Model, device: torch.device, seed: int):
        shapes = model.shapes()
        self.stores = {name: torch.empty(shape, dtype=torch.bfloat16, device=device) for name, shape in shapes.items()}
        self._generator = torch.Generator(device).manual_seed(seed)
        for name, tensor in self.stores.items():
            mean = 1.0 if "norm" in name else 0.0
            tensor.normal_(mean, spread(name, tensor), generator=self._generator)

    def step(self) -> None:
        """Change the values as a training step does."""
        largest = max(tensor.numel() for tensor in self.stores.values())
        noise = torch.empty(min(NOISE, largest), dtype=torch.bfloat16, device=self._generator.device)
        noise.normal_(generator=self._generator)
        for name, tensor in self.stores.items():
            for part in tensor.view(-1).split(len(noise)):
                part.add_(noise[: len(part)], alpha=STEP * spread(name, tensor))

    def stacked(self) -> list[NamedTensor]:
        """Return every tensor; a layer's experts as two of three dimensions."""
        return list(self.stores.items())

    def named(self) -> list[NamedTensor]:
        """Return every tensor by its name in the checkpoint, where each expert has three of its own."""
        return [pair for item in self.stores.items() for pair in one_by_one(*item)]


def spread(name: str, tensor: torch.Tensor) -> float:
    """Return the standard deviation of a tensor's values: activations stay near 1, and logits are far from flat."""
    if tensor.dim() < 2:
        return 0.1
    scale = {"model.embed_tokens.weight": tensor.shape[-1] ** 0.5, "lm_head.weight": 4.0}.get(name, 1.0)
    return scale / tensor.shape[-1] ** 0.5


def total_bytes(weights: Iterable[NamedTensor]) -> int:
    """Return the total size of the weights in bytes."""
    return sum(tensor.nbytes for _, tensor in weights)
