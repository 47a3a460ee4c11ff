"""Compilation of a refit's kernels before an engine profiles its memory and captures graphs."""

from collections.abc import Iterator

import torch

from ascend_quant.kernels import kernels_for
from ascend_quant.kernels.writes import RowWrite
from ascend_quant.refit.session import Refit

SENT_AS = (torch.bfloat16, torch.float32)  # dtypes that trainers send


def prepare(refit: Refit, prequantized: bool = False) -> None:
    """Compile the kernels for refits from tensors on the engine's device, and for digests of these tensors.

    Args:
        prequantized: whether to include kernels for pre-quantized tensors (transfer/prequantized.py), which few
            trainers send.
    """
    device = refit.residents[0].tensor.device
    kernels_for(device).prepare(device, _of_prequantized(refit) if prequantized else _of_weights(refit))


def _of_weights(refit: Refit) -> Iterator[tuple[RowWrite, torch.dtype]]:
    for resident in refit.residents:
        if resident.row_count and resident.row_length:
            yield from ((resident.example(), dtype) for dtype in SENT_AS)
            for check in refit.checks:
                yield from check.extra_writes(resident)


def _of_prequantized(refit: Refit) -> Iterator[tuple[RowWrite, torch.dtype]]:
    for resident in refit.residents:
        if resident.takes_codes and resident.row_count and resident.row_length:
            yield resident.example(prequantized=True), resident.data.dtype
