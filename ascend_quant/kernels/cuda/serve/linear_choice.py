"""Selection of the int8 GEMM kernel: the tuned one, else vLLM's cutlass, else Triton with default tiles.

Nothing is measured or compiled here: a given shape and number of rows always gets the same kernel.
"""

import logging
from functools import cache, lru_cache

import torch

from ascend_quant.kernels import tuned
from ascend_quant.kernels.tuned import HopperTiles, Tiles

logger = logging.getLogger(__name__)

ALIGNMENT = 16  # K and N must be multiples of this for cutlass
NO_CUTLASS = (10, 0)  # the first compute capability for which vLLM's cutlass has no int8 kernels
BY_ROWS = {  # tiles that fit the shared memory of every GPU from sm80 on
    16: Tiles(16, 64, 256, 1, 4, 3),
    32: Tiles(32, 64, 256, 1, 4, 3),
    64: Tiles(64, 64, 128, 1, 4, 4),
    128: Tiles(64, 128, 128, 1, 4, 3),
    256: Tiles(128, 128, 128, 1, 8, 3),
}
LEAST_LENGTH = 4096  # minimum K per program with split-K; below it, adding up the parts costs more than is saved
MAKERS = {"triton": Tiles, "hopper": HopperTiles}
DESCRIPTORS = (3, 4)  # the first Triton version with tensor descriptors
GLUON = (3, 6)  # the first Triton version that gluon_linear.py has run with; Gluon changes with every release


def tiles_of(choice: tuned.Choice) -> Tiles | HopperTiles | None:
    """Return the tiles of a tuned choice; None for cutlass."""
    fields = {name: value for name, value in choice.items() if name != "by"}
    return MAKERS[choice["by"]](**fields) if choice["by"] in MAKERS else None


def linear(columns: int, length: int, rows: int, dtype: torch.dtype) -> Tiles | HopperTiles | None:
    """Choose the tiles for the int8 GEMM (rows, K) x (N, K) on the current GPU; None for vLLM's cutlass.

    Raises:
        tuned.BadTable: a file of tuned choices is invalid.
    """
    return _linear(torch.cuda.current_device(), columns, length, rows, dtype in (torch.bfloat16, torch.float16))


def takes_cutlass(shape: tuple[int, ...], capability: tuple[int, int]) -> bool:
    """Return whether vLLM's int8 cutlass kernels support weights (N, K) on such a GPU, with 16-bit outputs."""
    return capability < NO_CUTLASS and all(size % ALIGNMENT == 0 for size in shape)


def takes_tiles(tiles: Tiles | HopperTiles) -> bool:
    """Return whether the installed Triton supports these tiles."""
    import triton

    needed = GLUON if isinstance(tiles, HopperTiles) else DESCRIPTORS if tiles.tma else (0, 0)
    return tuple(int(part) for part in triton.__version__.split(".")[:2]) >= needed


def tiles_by_rule(columns: int, length: int, rows: int, processors: int) -> Tiles:
    """Return default tiles for an untuned shape; K is split if the tiles do not fill the GPU."""
    tiles = BY_ROWS[min((bucket for bucket in BY_ROWS if bucket >= rows), default=max(BY_ROWS))]
    programs = -(-rows // tiles.block_m) * -(-columns // tiles.block_n)
    split = min(processors // programs, length // LEAST_LENGTH)
    return tiles._replace(split_k=max(1, split))


@cache
def log_choice(capability: tuple[int, int]) -> None:
    """Log once, when an engine allocates its buffers, that another kernel than vLLM's is used."""
    if capability >= NO_CUTLASS:
        logger.warning(
            "compute capability %d.%d: vLLM's cutlass kernels do not support int8 on this GPU; int8 linear "
            "layers use Triton kernels",
            *capability,
        )


@lru_cache(maxsize=1 << 16)
def _linear(device: int, columns: int, length: int, rows: int, short: bool) -> Tiles | HopperTiles | None:
    cutlass = short and takes_cutlass((columns, length), torch.cuda.get_device_capability(device))
    choice = tuned.find("linear", (columns, length), rows, beyond=False)
    tiles = tiles_of(choice) if choice else None
    if tiles is not None and not takes_tiles(tiles):
        logger.warning("this Triton is too old for the tuned kernel of weights (%d, %d)", columns, length)
        tiles = None
    if tiles is not None or cutlass:
        return tiles
    return tiles_by_rule(columns, length, rows, torch.cuda.get_device_properties(device).multi_processor_count)


def forget() -> None:
    """Discard cached choices, after `tuned.forget`."""
    for cached in (_linear, log_choice):
        cached.cache_clear()
