"""The roundings of oracle/rounding.py in plain torch operations, the same bytes on every device; asynchronous.

No division, since nobody promises how an NPU rounds one: scale and factor of each BF16 magnitude come from a table that
the host makes. No shift, since CANN has none on the AI cores: half a word is a view as int16. What is left are int32
products that wrap, xor, float32 products and floor. A device is tried once, on a few rows, and refused if a byte
differs. A few rows are taken at a time, since each element needs about 20 bytes of work space.
"""

from collections.abc import Iterator
from functools import cache

import torch

from ascend_quant import oracle
from ascend_quant.kernels.registry import NoKernels
from ascend_quant.oracle.rounding import DRAWS, FACTOR

HOST_ELEMENTS, ELEMENTS = 1 << 18, 1 << 24  # at a time: 5 MiB of work space, and 320
LARGEST_BITS = 0x7FC00000  # of a magnitude: NaN


def hashed(w_NK: torch.Tensor, key: tuple[int, int], first: int, codes_NK: torch.Tensor) -> torch.Tensor:
    """Write the codes of whole rows, see `oracle.hashed`.

    Args:
        w_NK: floats, taken in float32.
        key: of `oracle.key_of`. first: the index in the whole parameter of the first element.
        codes_NK: int8, on the same device; last stride 1.

    Returns:
        float32 scales (N).

    Raises:
        NoKernels: the device's operations give other bytes than the definition's.
    """
    check(w_NK.device)
    return _hashed(w_NK, key, first, codes_NK)


def carried(w_NK: torch.Tensor, residual_NK: torch.Tensor, codes_NK: torch.Tensor) -> torch.Tensor:
    """Write the codes of whole rows, and what they leave in place of `residual_NK`, see `oracle.carried`.

    Args:
        w_NK: floats, taken in float32.
        residual_NK: float32, of the codes before; on the same device.
        codes_NK: int8, on the same device; last stride 1.

    Returns:
        float32 scales (N).

    Raises:
        NoKernels: as `hashed` does.
    """
    check(w_NK.device)
    return _carried(w_NK, residual_NK, codes_NK)


@cache
def check(device: torch.device) -> None:
    """Raise NoKernels unless this device rounds some rows as the definition does; waits for it, once."""
    generator = torch.Generator().manual_seed(0)
    w_NK = torch.randn(64, 96, generator=generator) * 2.0 ** torch.arange(-40, 24).unsqueeze(1)
    residual_NK = torch.randn(64, 96, generator=generator) * w_NK / 64
    here, left_NK = w_NK.to(device), residual_NK.to(device, copy=True)
    codes_NK = torch.empty(w_NK.shape, dtype=torch.int8, device=device)
    found = [_hashed(here, oracle.key_of(1, 2, "w"), 2**32 - 300, codes_NK), codes_NK.clone()]
    found += [_carried(here, left_NK, codes_NK), codes_NK, left_NK]
    codes, scale = oracle.hashed(w_NK, 1, 2, "w", 2**32 - 300)
    again, scale_too, left = oracle.carried(w_NK, residual_NK)
    for what, one, wanted in zip(
        ("scales", "hashed codes", "scales", "carried codes", "residuals"),
        found,
        (scale, codes, scale_too, again, left),
        strict=True,
    ):
        if (different := int((one.cpu() != wanted).sum())) > 0:
            raise NoKernels(
                f"{device}: {different} of {wanted.numel()} {what} are not the definition's, so that ranks and devices "
                "could differ; set rounding to nearest there"
            )


def _hashed(w_NK: torch.Tensor, key: tuple[int, int], first: int, codes_NK: torch.Tensor) -> torch.Tensor:
    scale_N = torch.empty(len(w_NK), dtype=torch.float32, device=w_NK.device)
    for rows in _rows(w_NK):
        part_NK = w_NK[rows].float()
        magnitude_NK = part_NK.abs()
        scale_N[rows], factor_N = _scale_and_factor(magnitude_NK)
        magnitude_NK.mul_(factor_N.unsqueeze(1))
        whole_NK = magnitude_NK.floor()
        rest_NK = magnitude_NK.sub_(whole_NK).mul_(DRAWS)
        draw_NK = _draws(part_NK.numel(), first + rows.start * w_NK.shape[1], key, w_NK.device).view(part_NK.shape)
        whole_NK.add_(draw_NK < rest_NK).clamp_(max=oracle.INT8_MAX)
        codes_NK[rows] = torch.where(part_NK < 0, -whole_NK, whole_NK).to(torch.int8)
    return scale_N


def _carried(w_NK: torch.Tensor, residual_NK: torch.Tensor, codes_NK: torch.Tensor) -> torch.Tensor:
    scale_N = torch.empty(len(w_NK), dtype=torch.float32, device=w_NK.device)
    for rows in _rows(w_NK):
        x_NK = residual_NK[rows].add_(w_NK[rows].float())
        scale_N[rows], factor_N = _scale_and_factor(x_NK.abs())
        whole_NK = (x_NK * factor_N.unsqueeze(1)).round_().clamp_(-oracle.INT8_MAX, oracle.INT8_MAX)
        codes_NK[rows] = whole_NK.to(torch.int8)
        x_NK.sub_(whole_NK.mul_(scale_N[rows].unsqueeze(1)))  # two operations: a fused one would round once
    return scale_N


def _rows(w_NK: torch.Tensor) -> Iterator[slice]:
    """The rows of a matrix, as many at a time as the work space is for."""
    elements = HOST_ELEMENTS if w_NK.device.type == "cpu" else ELEMENTS
    step = max(1, elements // max(1, w_NK.shape[1]))
    for start in range(0, len(w_NK) if w_NK.shape[1] else 0, step):
        yield slice(start, min(start + step, len(w_NK)))


def _draws(count: int, first: int, key: tuple[int, int], device: torch.device) -> torch.Tensor:
    """float32 (count): whole numbers below 2**24 of elements from index `first` on."""
    x = torch.arange(count, dtype=torch.int32, device=device).add_(_signed(first))
    for word in key:
        x.bitwise_xor_(_signed(word))
        halves = x.view(torch.int16).view(-1, 2)  # little-endian: the low half first
        for _ in range(2):
            halves[:, 0] ^= halves[:, 1]
            x.mul_(FACTOR)
        halves[:, 0] ^= halves[:, 1]
    return x.bitwise_and_(DRAWS - 1).float()


def _signed(number: int) -> int:
    """The int32 with the same low 32 bits."""
    return (number + 2**31) % 2**32 - 2**31


def _scale_and_factor(magnitude_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 (N) each, of rows of magnitudes."""
    bits_N = magnitude_NK.amax(1).view(torch.int32).clamp_(max=LARGEST_BITS).add_(0xFFFF)
    number_N = bits_N.view(torch.int16).view(-1, 2)[:, 1].to(torch.int32)
    scales, factors = _tables(magnitude_NK.device)
    return torch.index_select(scales, 0, number_N), torch.index_select(factors, 0, number_N)


@cache
def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and factor, float32 (32768) each, of every BF16 magnitude by its bits."""
    magnitude = torch.arange(32768, dtype=torch.int32, device="cpu").to(torch.int16).view(torch.bfloat16).float()
    scale = oracle.scale_of(magnitude, oracle.INT8_MAX)
    factor = torch.where((scale > 0) & torch.isfinite(scale), (1 / scale.double()).float(), 0.0)
    return scale.to(device), factor.to(device)
