"""Kernels that start while the previous one still runs (programmatic dependent launch), on Hopper and newer GPUs.

Such a kernel waits before it accesses memory that earlier kernels write, and then lets the next one start. Until then
the memory is idle, so it may prefetch weights into the L2 cache, which is coherent: a refit's writes are not missed.
"""

import ctypes
from functools import cache

import torch
import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # an older Triton
    gdc_launch_dependents = gdc_wait = None

CAPABILITY, DRIVER = (9, 0), 12030  # CUDA 12.3: the first whose graphs hold such launches
LINE = tl.constexpr(128)  # bytes of a cache line


@cache
def starts_early(device: torch.device) -> bool:
    """Return whether the device supports this."""
    if gdc_wait is None or device.type != "cuda" or torch.cuda.get_device_capability(device) < CAPABILITY:
        return False
    return _driver() >= DRIVER


def launch(early: bool) -> dict[str, bool]:
    """Return Triton's option that starts a kernel early (programmatic dependent launch)."""
    return {"launch_pdl": True} if early else {}


def _driver() -> int:
    """Return the CUDA version that the driver supports, or 0 if unknown."""
    version = ctypes.c_int(0)
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return version.value


@triton.jit
def wait(EARLY: tl.constexpr, LATE: tl.constexpr = False):
    """Wait for the previous kernels' reads and writes; then let the next kernel start, unless LATE."""
    if EARLY:
        gdc_wait()
        if not LATE:
            gdc_launch_dependents()


@triton.jit
def call_next(EARLY: tl.constexpr):
    """Let the next kernel start once all programs have called this or have ended."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def call_next_and_wait(EARLY: tl.constexpr):
    """Let the next kernel start at once, then wait for the previous kernels."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def ask_for(w, rows, first, last, K, BLOCK_K: tl.constexpr):
    """Prefetch steps `first` to `last`, of BLOCK_K columns, of some rows of int8 codes (.., K), line by line."""
    lines = tl.arange(0, (BLOCK_K + LINE - 1) // LINE) * LINE
    row = w + rows.to(tl.int64)[:, None] * K
    for step in range(first, last):
        at = row + tl.minimum(step * BLOCK_K + lines, K - 1)[None, :]
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at.to(tl.int64)], tl.int32, is_pure=False, pack=1
        )
