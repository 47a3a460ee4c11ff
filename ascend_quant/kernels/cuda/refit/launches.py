"""Triton launches from tables built on the host, with one upload per batch and little host work per launch.

A kernel takes (table, starts, pieces, totals, *constants): a table with one line per matrix, each an even number of
int64; the index of each line's first program; the number of lines; and a tensor to which it adds its results.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

_COMPILED: dict[tuple, object] = {}


class Launch(NamedTuple):
    """The launch of a Triton kernel: its table, grid, constants and compiler options.

    Attributes:
        table: int64 (pieces, FIELDS).
        programs: int64 (pieces), the number of programs for each line of the table.
        constants: the kernel's remaining arguments, in order.
        options: compiler options such as num_warps and maxnreg.
    """

    kernel: object
    table: np.ndarray
    programs: np.ndarray
    constants: tuple
    options: tuple[tuple[str, int], ...]


class Head(NamedTuple):
    """A launch whose table is part of a concatenated one.

    Attributes:
        launch: the launch; its kernel, constants and options are used.
        table, starts: offsets of its table and its starts in the concatenated one.
        pieces, programs: their numbers.
    """

    launch: Launch
    table: int
    starts: int
    pieces: int
    programs: int


def join(launches: Sequence[Launch]) -> tuple[np.ndarray, list[Head]]:
    """Concatenate all tables and starts into one array; return it, and each launch's position in it."""
    parts, heads, at = [np.zeros(0, dtype=np.int64)], [], 0
    for launch in launches:
        ends = np.cumsum(launch.programs)
        flat, pieces = launch.table.ravel(), len(ends)
        odd = np.zeros(pieces % 2, dtype=np.int64)  # aligns the next table to 16 bytes
        parts += [flat, ends - launch.programs, odd]
        heads.append(Head(launch, at, at + len(flat), pieces, int(ends[-1])))
        at += len(flat) + pieces + len(odd)
    return np.concatenate(parts), heads


def start(flat: np.ndarray, heads: Sequence[Head], totals: torch.Tensor) -> None:
    """Start the launches one after the other on the current stream of the device of `totals`."""
    if not heads:
        return
    on_device = _upload(flat, totals.device)
    with torch.cuda.device_of(totals):
        for head in heads:
            constants = head.launch.constants
            arguments = (on_device[head.table :], on_device[head.starts :], head.pieces, totals, *constants)
            _run(head.launch, head.programs, totals.device, arguments)


def _upload(flat: np.ndarray, device: torch.device) -> torch.Tensor:
    on_host = torch.from_numpy(flat)
    if device.type == "cuda":
        on_host = on_host.pin_memory()  # a copy of more than 64 KiB from pageable memory may wait for the stream
    return on_host.to(device, non_blocking=True)


def _run(launch: Launch, count: int, device: torch.device, arguments: tuple) -> None:
    """Launch a compiled kernel directly, since Triton's own launch path takes tens of microseconds.

    This is safe because everything that Triton would check is part of the key or constant: addresses are multiples of
        16 bytes, and kernels are not specialized on the number of pieces.
    """
    key = (launch.kernel, device, launch.constants, launch.options)
    compiled = _COMPILED.get(key)
    if compiled is None:
        _COMPILED[key] = launch.kernel[(count,)](*arguments, **dict(launch.options))
    else:
        compiled[(count, 1, 1)](*arguments)
