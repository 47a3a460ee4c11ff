"""Tuned kernel choices of this GPU, as measured by benchmarks/tune; reading them needs neither Triton nor a GPU.

There is one file per GPU model. ascend_quant/kernels/tuned contains the shipped ones; a file of the same name in the
user's cache (~/.cache/ascend_quant/tuned, or below XDG_CACHE_HOME) overrides them, shape by shape and bucket by bucket:

    {"linear": {"4608x3584": {"64": {"by": "triton", "block_m": 64, ..}, "256": {"by": "cutlass"}}}, "experts": {..}}

A bucket is a number of rows (tokens); rows use the smallest bucket that is large enough, or else, if requested, the
largest.
"""

import logging
import os
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from ascend_quant.files.documents import BadDocument, parse_json, read_text

logger = logging.getLogger(__name__)

Choice = dict[str, int | bool | str]  # "by": a way; its fields
SHIPPED = Path(__file__).parent / "tuned"
VLLM = ("cutlass", "vllm")  # implementations that are vLLM's own


class Tiles(NamedTuple):
    """The tiles into which `triton_linear.int8_product` cuts an (M, N, K) GEMM.

    Attributes:
        split_k: number of programs that share a tile's K; their int32 sums are added.
        tma: load by tensor descriptors (sm90 and newer; K must be a multiple of 16).
        pdl: start while the previous kernel is still running, and wait before reading that kernel's output (sm90 and
            newer).
        ahead: steps of block_k whose weights a program with `pdl` prefetches before it waits.
        late: with `pdl`, let the next kernel start when a program has its sums, not when it begins.
    """

    block_m: int
    block_n: int
    block_k: int
    split_k: int
    warps: int
    stages: int
    tma: bool = False
    pdl: bool = False
    ahead: int = 0
    late: bool = False


class HopperTiles(NamedTuple):
    """The tiles of `gluon_linear`, whose programs are persistent and loop over tiles.

    Attributes:
        warps: number of warps that multiply, besides the one that loads.
        stream_k: all programs do the same number of steps of K, whichever tiles these belong to.
        more: additional tokens of a tile (0 or 64): with 128 + 64, weights are read once for 160 tokens.
    """

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    stream_k: bool = False
    more: int = 0

    @property
    def rows(self) -> int:
        """The number of tokens of a tile."""
        return self.block_m + self.more


class GroupedTiles(NamedTuple):
    """The tiles of `triton_experts.mixture`, a fused MoE: of tokens times w13 (up), and the result times w2 (down).

    Attributes:
        block_m: (token, expert) pairs of one expert per program, in both products.
        up_n, down_n: rows of the weight per program.
        up_group, down_group: blocks of pairs that are processed before the next tile of N.
        up_swap, down_swap: multiply weights times tokens.
        pdl: each kernel starts while the previous one is still running (sm90 and newer).
    """

    block_m: int
    up_n: int
    up_k: int
    up_warps: int
    up_stages: int
    up_group: int
    up_swap: bool
    down_n: int
    down_k: int
    down_warps: int
    down_stages: int
    down_group: int
    down_swap: bool
    pdl: bool


def _cutlass() -> None:
    """vLLM's own kernel: a choice without fields."""


class Kind(NamedTuple):
    """A kind of tuned operation: the axes of its shape, and what the fields of a choice make, by its way."""

    axes: tuple[str, ...]
    ways: Mapping[str, Callable[..., object]]


class BadTable(ValueError):
    """Raised for an invalid file of choices; the message names the file."""


KINDS = {
    "linear": Kind(("n", "k"), {"cutlass": _cutlass, "triton": Tiles, "hopper": HopperTiles}),
    "experts": Kind(("experts", "width", "hidden", "top"), {"triton": GroupedTiles}),
}
Table = dict[str, dict[tuple[int, ...], dict[int, Choice]]]  # kind, shape, bucket


def find(kind: str, shape: tuple[int, ...], rows: int, beyond: bool = True) -> Choice | None:
    """Return the choice for this many rows on the current GPU; None if the shape is not tuned.

    The dictionary is shared and must not be modified.

    Args:
        beyond: whether rows beyond all buckets use the choice of the largest one.
    """
    return _find(_gpu(torch.cuda.current_device()), kind, shape, rows, beyond)


def gpu_name(device: int | None = None) -> str:
    """Return the GPU's model name as used in file names."""
    return torch.cuda.get_device_name(device).replace(" ", "_").replace("/", "_")


def user_file(gpu: str) -> Path:
    """Return the path of the tuner's results for a GPU model."""
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache_home / "ascend_quant" / "tuned" / f"{gpu}.json"


def table(gpu: str) -> Table:
    """Return the tuned choices for a model of GPU: the shipped ones, overlaid with the user's file.

    Raises:
        BadTable: a file does not have the format described above.
    """
    return merged(load(SHIPPED / f"{gpu}.json"), load(user_file(gpu)))


def load(file: Path) -> Table:
    """Return the choices of a file; none if it does not exist, or (with a warning) if it cannot be read.

    Raises:
        BadTable: the file does not have the format described above.
    """
    try:
        content = parse_json(read_text(file), str(file))
    except BadDocument as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return {}
        if isinstance(error.__cause__, OSError):
            logger.warning("%s cannot be read and is ignored: %s", file, error.__cause__)
            return {}
        raise BadTable(f"{error}; fix or delete it") from error
    try:
        return {
            kind: {
                _shape(shape, KINDS[kind].axes): {
                    int(rows): _checked(choice, KINDS[kind].ways) for rows, choice in buckets.items()
                }
                for shape, buckets in shapes.items()
            }
            for kind, shapes in content.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadTable(f"{file}: {type(error).__name__}: {error!s:.200}; fix or delete it") from error


def _shape(text: str, axes: tuple[str, ...]) -> tuple[int, ...]:
    numbers = tuple(map(int, text.split("x")))
    if len(numbers) != len(axes):
        raise ValueError(f"{text} is not {'x'.join(axes)}")
    return numbers


def _checked(choice: Choice, ways: Mapping[str, Callable[..., object]]) -> Choice:
    """Return the choice; TypeError if its way does not have these fields, KeyError if there is no such way."""
    ways[choice["by"]](**{name: value for name, value in choice.items() if name != "by"})
    return choice


def merged(below: Table, above: Table) -> Table:
    """Merge two tables; `above` wins if both have the same bucket of a shape."""
    both: Table = {}
    for one in (below, above):
        for kind, shapes in one.items():
            for shape, buckets in shapes.items():
                both.setdefault(kind, {}).setdefault(shape, {}).update(buckets)
    return both


def forget() -> None:
    """Read the files again at the next `find`."""
    for cached in (_find, _gpu, _read):
        cached.cache_clear()


@lru_cache(maxsize=1 << 16)
def _find(gpu: str, kind: str, shape: tuple[int, ...], rows: int, beyond: bool) -> Choice | None:
    buckets = _read(gpu).get(kind, {}).get(shape, {})
    holding = [bucket for bucket in buckets if bucket >= rows]
    if not holding and not (beyond and buckets):
        return None
    return buckets[min(holding, default=max(buckets))]


@cache
def _gpu(device: int) -> str:
    return gpu_name(device)


@cache
def _read(gpu: str) -> Table:
    return table(gpu)
