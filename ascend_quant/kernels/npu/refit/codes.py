"""Quantization of BF16 rows on an NPU: two fused operators if they give the oracle's bytes, else elementwise operators.

torch.linalg.vector_norm computes the largest magnitudes, and npu_quantize the codes, with one factor per row (axis=-2,
without a division): 13 bytes of traffic per element, compared with 49 for the chain of elementwise operators. The
documentation does not specify how an operator treats NaN, ties, or arguments that the installed CANN does not support:
axis=-2 is silently ignored if aclnnAscendQuantV3 is missing. So each operator is tested on a few hundred rows when a
device is first used. An operator that differs from the oracle in any byte is not used, which is logged once.
"""

import logging
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch

from ascend_quant import oracle
from ascend_quant.kernels import reciprocals
from ascend_quant.kernels.npu.ops import operator

logger = logging.getLogger(__name__)

CHAIN_ELEMENTS = 1 << 23  # elements at a time; each needs about 20 bytes of work space
FUSED_ELEMENTS = 6 << 24  # 5 bytes of work space per element, 7 if tensors are joined: 480 to 672 MiB
SQUARE = 128  # rows and columns of the test: a per-column factor would fit as well, and is detected


class Way(NamedTuple):
    """The operators that quantize rows to int8 on a device.

    Attributes:
        absmax: (N, K) floating -> (N): absmax per row; not finite if an element is not.
        codes: BF16 (N, K), float32 factors (N) -> int8 (N, K).
        elements: how many elements are processed at a time.
    """

    absmax: Callable[[torch.Tensor], torch.Tensor]
    codes: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    elements: int


def absmax_by_norm(x_NK: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(x_NK, float("inf"), dim=1)


def absmax_by_chain(x_NK: torch.Tensor) -> torch.Tensor:
    return x_NK.abs().amax(1)


def codes_fused(x_NK: torch.Tensor, factor_N: torch.Tensor) -> torch.Tensor:
    """Quantize by one product, rounded half to even and cast: no clamp is needed, |x * factor| is below 127.5.

    Raises:
        MissingOperator: torch_npu has no npu_quantize.
    """
    if x_NK.device.type == "cpu":  # runs the same arithmetic without an NPU
        return (x_NK.float() * factor_N.unsqueeze(-1)).round_().to(torch.int8)
    quantize = operator("npu_quantize")
    return quantize(x_NK.float(), factor_N, None, torch.qint8, axis=-2, div_mode=False)


@cache
def way_of(device: torch.device) -> Way:
    """Return the device's operators; the first call tests them, which synchronizes the device."""
    absmax, codes = absmax_by_norm, codes_fused
    if why := _why_not(_try_absmax, device):
        logger.warning("refits on %s use abs and amax instead of vector_norm: %s", device, why)
        absmax = absmax_by_chain
    if why := _why_not(_try_codes, device):
        logger.warning("refits on %s quantize with elementwise operators instead of npu_quantize: %s", device, why)
        codes = reciprocals.codes_of
    return Way(absmax, codes, FUSED_ELEMENTS if codes is codes_fused else CHAIN_ELEMENTS)


def _why_not(trial: Callable[[torch.device], str], device: torch.device) -> str:
    try:
        return trial(device)
    except RuntimeError as error:  # from torch or CANN, or for a missing operator
        return f"it failed: {error}"


def _try_absmax(device: torch.device) -> str:
    """Return how vector_norm fails as absmax ("" if it does not): it must be exact, and not finite with NaN or Inf."""
    x_NK = _rows()
    found = absmax_by_norm(x_NK.to(device)).cpu()
    if found.dtype != x_NK.dtype or not torch.equal(found, x_NK.abs().amax(1)):
        return (
            f"its magnitudes of finite rows are not exact: {found[:4].tolist()} instead of "
            f"{x_NK.abs().amax(1)[:4].tolist()}"
        )
    bad = [float("nan"), -float("nan"), float("inf"), -float("inf")]
    for length in (1, SQUARE - 1, 4096 + 1):
        places = sorted({0, length // 2, length - 1})
        spoilt_NK = torch.ones(len(bad) * len(places), length, dtype=torch.bfloat16, device="cpu")
        for row in range(len(spoilt_NK)):
            spoilt_NK[row, places[row // len(bad)]] = bad[row % len(bad)]
        found = absmax_by_norm(spoilt_NK.to(device)).cpu()
        if torch.isfinite(found).any():
            row = int(torch.isfinite(found).nonzero()[0])
            where = places[row // len(bad)]
            return f"{bad[row % len(bad)]} at {where} of {length} elements has the magnitude {float(found[row])}"
    return ""


def _try_codes(device: torch.device) -> str:
    """Return how the codes of npu_quantize are wrong ("" if they are not)."""
    for x_NK in (_rows(), _rows()[:, :48].contiguous(), _rows()[:40]):
        wanted_NK, _ = oracle.quantize_weight(x_NK)
        _, factor_N = reciprocals.scale_and_factor(x_NK.abs().amax(1))
        found_NK = codes_fused(x_NK.to(device), factor_N.to(device)).cpu()
        if found_NK.shape != wanted_NK.shape or found_NK.dtype != torch.int8:
            return f"codes of {tuple(x_NK.shape)} come as {found_NK.dtype} {tuple(found_NK.shape)}"
        if not torch.equal(found_NK, wanted_NK):
            row, column = (found_NK != wanted_NK).nonzero()[0].tolist()
            x, absmax = float(x_NK[row, column]), float(x_NK[row].abs().amax())
            codes = f"{int(found_NK[row, column])}, by the definition {int(wanted_NK[row, column])}"
            return f"{x} in a row of up to {absmax} has the code {codes}"
    return ""


def _rows() -> torch.Tensor:
    """Return BF16 (SQUARE, SQUARE) on the CPU, whose rows' absmax cover all mantissas.

    Besides its absmax, a row contains half of it, whose quotient is 63.5 up to the rounding of the scale; halves of odd
    codes, which are ties if the scale is a power of two; and other values. Two rows are zero, and two are so small that
    they are treated as zero.
    """
    on_host = {"dtype": torch.float32, "device": "cpu"}  # independent of the defaults of an engine that is loading
    numbers = torch.arange(SQUARE, **on_host)
    absmax_N1 = ((1 + numbers / 128) * 2.0 ** (numbers * 5 % 60 - 30)).unsqueeze(1)
    absmax_N1[:6, 0] = torch.tensor([0.0, 0.0, 2.0**-101, 2.0**-120, 127.0, 254.0 * 2.0**20], **on_host)
    sign_K = 1 - 2 * (numbers % 3 == 1).float()
    x_NK = absmax_N1 * (numbers * 2 - 1).clamp(min=0) / 254 * sign_K
    x_NK[:, :4] = absmax_N1 * torch.tensor([0.5, -0.5, 1.0, -1.0], **on_host)
    return x_NK.to(torch.bfloat16)
