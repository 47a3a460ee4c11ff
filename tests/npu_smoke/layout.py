"""FRACTAL_NZ: where torch_npu puts each byte, the plain alias of its memory, and what keeps a weight's address."""

import math

import torch

from ascend_quant.kernels import npu_formats
from ascend_quant.kernels.npu_formats import DEPTH, FRACTAL_NZ, ND, PANEL
from npu_smoke import data
from npu_smoke.checks import NotPossible, Setting, check, require
from npu_smoke.compare import require_equal

SHAPES = ((64, 96), (16, 32), (40, 72), (1, 1), (3, 48, 64), (2, 24, 40))  # (.., K, N)


def _shapes(on: Setting) -> list[tuple[int, ...]]:
    return [*SHAPES] if on.small else [*SHAPES, (3584, 4608), (8, 2048, 1536)]


def _some(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randint(-127, 128, shape, generator=data.generator(seed), dtype=torch.int8)


def _cast(values: torch.Tensor, on: Setting) -> torch.Tensor:
    """A FRACTAL_NZ tensor on the device."""
    import torch_npu

    cast = data.operator("npu_format_cast")(on.put(values), FRACTAL_NZ)
    found = torch_npu.get_npu_format(cast)
    require(found == FRACTAL_NZ, f"npu_format_cast to FRACTAL_NZ ({FRACTAL_NZ}) gave format {found}")
    return cast


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """All its bytes as a plain tensor, by the private function that our kernels use."""
    import torch_npu

    if not hasattr(torch_npu._C, "_construct_storage_from_data_pointer"):
        raise NotPossible(
            "this torch_npu has no _construct_storage_from_data_pointer: weights must stay plain (nz off)"
        )
    return npu_formats._plain_memory(tensor)


def _places(shape: tuple[int, ...]) -> torch.Tensor:
    """int64 like the shape: the byte at which each element is supposed to lie."""
    experts, (k, n) = math.prod(shape[:-2]), shape[-2:]
    depth, panels = -(-k // DEPTH) * DEPTH, -(-n // PANEL)
    ranges = (torch.arange(size) for size in (experts, k, n))
    e, row, column = torch.meshgrid(*ranges, indexing="ij")
    return (e * panels * PANEL * depth + column // PANEL * PANEL * depth + row * PANEL + column % PANEL).view(shape)


def _padded(shape: tuple[int, ...]) -> int:
    k, n = shape[-2:]
    return math.prod(shape[:-2]) * (-(-k // DEPTH) * DEPTH) * (-(-n // PANEL) * PANEL)


@check("layout.formula", claim="bytes")
def formula(on: Setting, numbers: dict) -> None:
    """Does element (k, n) lie at byte n // 32 * 32 * Kp + k * 32 + n % 32, Kp = K rounded up to 16?"""
    for shape in _shapes(on):
        values = _some(shape, 31)
        cast = _cast(values, on)
        stored = _alias(cast).cpu()
        numbers[f"bytes of {list(shape)}"] = len(stored)
        require(len(stored) == _padded(shape), f"{shape} takes {len(stored)} bytes, expected {_padded(shape)}")
        require_equal(stored[_places(shape)], values, numbers, str(list(shape)))
        del cast


@check("layout.padding", needed=False)
def padding(on: Setting, numbers: dict) -> None:
    """Are the bytes that fill up panels zeros after a cast?"""
    others = 0
    for shape in SHAPES:
        cast = _cast(_some(shape, 32), on)
        stored = _alias(cast).cpu()
        filling = torch.ones(len(stored), dtype=torch.bool)
        filling[_places(shape).flatten()] = False
        other = stored[filling][stored[filling] != 0]
        numbers[str(list(shape))] = {"padding": int(filling.sum()), "not zero": len(other), "some": other[:8].tolist()}
        others += len(other)
        del cast
    require(others == 0, f"{others} bytes of padding are not zero")


@check("layout.alias", claim="bytes")
def alias(on: Setting, numbers: dict) -> None:
    """Does what is written through the plain alias reach the FRACTAL_NZ tensor, at the same address?"""
    import torch_npu

    for shape in _shapes(on):
        values, cast = _some(shape, 33), _cast(torch.zeros(shape, dtype=torch.int8), on)
        address = cast.data_ptr()
        memory = _alias(cast)
        require(torch_npu.get_npu_format(memory) != FRACTAL_NZ, "the alias has the format FRACTAL_NZ itself")
        filled = torch.zeros(len(memory), dtype=torch.int8)
        filled[_places(shape).flatten()] = values.flatten()
        memory.copy_(on.put(filled))
        back = torch_npu.npu_format_cast(cast, ND)
        require_equal(back, values, numbers, str(list(shape)))
        require(cast.data_ptr() == address == memory.data_ptr(), f"{shape}: the address changed")
        require(torch_npu.get_npu_format(cast) == FRACTAL_NZ, f"{shape}: the format changed")


@check("layout.panels", claim="bytes")
def panels(on: Setting, numbers: dict) -> None:
    """Do rows that our kernels write by panel, ragged ones too, come back right from npu_format_cast?"""
    import torch_npu

    for shape in _shapes(on):
        with torch.device(on.device):
            place = npu_formats.new_codes(shape, nz=True)
        address, codes_NK = place.tensor.data_ptr(), _some(tuple(place.shape), 34)
        count = len(codes_NK)
        for part in (slice(count // 2, count), slice(0, min(7, count // 2)), slice(min(7, count // 2), count // 2)):
            place.write(part.start, on.put(codes_NK[part]))
        values = codes_NK.view(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2).contiguous()
        require_equal(torch_npu.npu_format_cast(place.tensor, ND), values, numbers, str(list(shape)))
        require_equal(place[:], codes_NK, numbers, f"{list(shape)} read by rows")
        step = slice(1, count, 5)
        require_equal(place[step], codes_NK[step], numbers, f"{list(shape)} every fifth row")
        require(place.tensor.data_ptr() == address, f"{shape}: the address changed")
        require(torch_npu.get_npu_format(place.tensor) == FRACTAL_NZ, f"{shape}: the format changed")


@check("layout.copy", needed=False)
def copy(on: Setting, numbers: dict) -> None:
    """Does copy_ of a whole FRACTAL_NZ tensor into another keep the address? (our way out without an alias)"""
    import torch_npu

    for shape in SHAPES:
        values, weight = _some(shape, 35), _cast(torch.zeros(shape, dtype=torch.int8), on)
        address = weight.data_ptr()
        weight.copy_(_cast(values, on))
        require_equal(torch_npu.npu_format_cast(weight, ND), values, numbers, str(list(shape)))
        require(weight.data_ptr() == address, f"{shape}: the address changed")
