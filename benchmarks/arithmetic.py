"""How others turn BF16 weights into resident int8 codes, written from what they do, each step an operation of torch.

All take the matrices one after the other, as their owners' loaders do, and end in the same resident buffers as ours.
"""

from collections.abc import Callable, Sequence

import torch

from benchmarks.matrices import Matrix


def frozen_scales(matrices: Sequence[Matrix]) -> Callable[[], None]:
    """FlashRL's int8: scales from a profile, made once; the product with both in float32, rounded, clamped, copied.

    A profile holds one factor an output row, and one an input column where a norm was smoothed into the layer.
    """
    profile = [(1 / matrix.scale_of_rows(), torch.ones_like(matrix.source[:1].float())) for matrix in matrices]

    def run() -> None:
        for matrix, (per_row, per_column) in zip(matrices, profile, strict=True):
            product = matrix.source * per_row * per_column
            matrix.codes.copy_(product.round().clamp(-128, 127).to(torch.int8))

    return run


def online(matrices: Sequence[Matrix]) -> Callable[[], None]:
    """vLLM's online int8 (its experts): the largest magnitude, division, rounding and clamping in BF16, a cast."""

    def run() -> None:
        for matrix in matrices:
            scale = matrix.source.abs().amax(dim=1) / 127
            codes = matrix.source.div(scale.unsqueeze(1)).round().clamp(-127, 127).to(torch.int8)
            matrix.codes.copy_(codes)
            matrix.scale.copy_(scale)

    return run


def vllm_quant_and_copy(matrices: Sequence[Matrix]) -> Callable[[], None]:
    """vLLM's `scaled_int8_quant`, one kernel into new tensors, which are then copied into the resident ones."""
    from vllm import _custom_ops

    def run() -> None:
        for matrix in matrices:
            codes, scale, _ = _custom_ops.scaled_int8_quant(matrix.source)
            matrix.codes.copy_(codes)
            matrix.scale.copy_(scale.view(-1))

    return run


def vllm_in_place(matrices: Sequence[Matrix]) -> Callable[[], None]:
    """The same kernel, given the resident tensors to write to."""
    import vllm._custom_ops  # noqa: F401  registers the kernel

    kernel = torch.ops._C.dynamic_scaled_int8_quant

    def run() -> None:
        for matrix in matrices:
            kernel(matrix.codes, matrix.source, matrix.scale.unsqueeze(1), None)

    return run


class Copy:
    """A plain copy within the device: the floor of everything that reads and writes memory.

    Args:
        nbytes: of the buffer that is read; another one like it is written.
    """

    def __init__(self, device: torch.device, nbytes: int):
        self.source = torch.empty(nbytes // 8, dtype=torch.int64, device=device).random_()
        self.target = torch.empty_like(self.source)

    def of(self, moved: int) -> Callable[[], None]:
        """Copies that read and write `moved` bytes together, through the whole buffer again and again."""
        full, rest = divmod(moved // 2, self.source.nbytes)

        def run() -> None:
            for _ in range(full):
                self.target.copy_(self.source)
            self.target[: rest // 8].copy_(self.source[: rest // 8])

        return run
