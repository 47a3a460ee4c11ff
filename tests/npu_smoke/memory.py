"""What refits leave behind: memory that torch_npu keeps reserved, and growth over many of them."""

import gc

import torch

from npu_smoke.checks import IN_SHORT, Setting, check, require
from npu_smoke.graphs import Residents
from npu_smoke.quantize import shapes, stack

COMPARED, SMALL = (5, 50), (2, 4)  # after so many refits


@check("memory.reserved", needed=False, claim="memory")
def reserved(on: Setting, numbers: dict) -> None:
    """Is no more memory reserved after three refits than after the first load, once the cache is emptied?"""
    refit = _loaded(on)
    before = _kept(on)
    torch.npu.reset_peak_memory_stats(on.device)
    for _ in range(3):
        refit()
    numbers["bytes of BF16"] = refit.bytes
    numbers["peak beyond what is held"] = torch.npu.max_memory_allocated(on.device) - before["allocated"]
    numbers["before"], numbers["after"] = before, _kept(on)
    numbers[IN_SHORT] = f"at most {numbers['peak beyond what is held'] / 2**20:.0f} MiB meanwhile"
    _require_no_more(before, numbers["after"])


@check("memory.growth", needed=False, claim="memory")
def growth(on: Setting, numbers: dict) -> None:
    """Do many refits hold as much memory as a few?"""
    refit, (first, last) = _loaded(on), SMALL if on.small else COMPARED
    for number in range(1, last + 1):
        refit()
        if number in (first, last):
            numbers[f"after {number}"] = _kept(on)
    _require_no_more(numbers[f"after {first}"], numbers[f"after {last}"])


def _loaded(on: Setting) -> Residents:
    """A layer of 7B and some experts in FRACTAL_NZ, which have been loaded once."""
    refit = Residents(on, [(96, 64), (3, 64, 80)] if on.small else [*shapes(on), stack(on)])
    refit()
    return refit


def _require_no_more(before: dict[str, int], after: dict[str, int]) -> None:
    for kind, size in before.items():
        require(after[kind] <= size, f"{kind}: {size} bytes, after more refits {after[kind]}")


def _kept(on: Setting) -> dict[str, int]:
    gc.collect()
    torch.npu.synchronize()
    torch.npu.empty_cache()
    return {
        "allocated": torch.npu.memory_allocated(on.device),
        "reserved": torch.npu.memory_reserved(on.device),
    }
