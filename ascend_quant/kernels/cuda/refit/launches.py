"""Triton launches from tables made on the host: one upload per batch, and little host work per launch.

A kernel here takes (table, starts, pieces, totals, *constants): a table with one line of an even number of int64 a
matrix, the number of each line's first program, how many lines there are, and what it adds its findings to.
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
        programs: int64 (pieces), how many programs each line of the table takes.
        constants: the rest of the kernel's arguments, in its order.
        options: names and values of what Triton's compiler takes: warps, registers.
    """

    kernel: object
    table: np.ndarray
    programs: np.ndarray
    constants: tuple
    options: tuple[tuple[str, int], ...]


class Head(NamedTuple):
    """A launch whose table is part of a flat one.

    Attributes:
        launch: of which kernel, constants and options count.
        table, starts: where its table and its starts begin in the flat one.
        pieces, programs: how many.
    """

    launch: Launch
    table: int
    starts: int
    pieces: int
    programs: int


def join(launches: Sequence[Launch]) -> tuple[np.ndarray, list[Head]]:
    """Join all tables and starts in one array; return it, and where each launch finds its own."""
    parts, heads, at = [np.zeros(0, dtype=np.int64)], [], 0
    for launch in launches:
        ends = np.cumsum(launch.programs)
        flat, pieces = launch.table.ravel(), len(ends)
        odd = np.zeros(pieces % 2, dtype=np.int64)  # so that the next table begins at a multiple of 16 bytes
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
        on_host = on_host.pin_memory()  # a copy of more than 64 KiB from other memory may wait for the stream
    return on_host.to(device, non_blocking=True)


def _run(launch: Launch, count: int, device: torch.device, arguments: tuple) -> None:
    """Launch. What is compiled is called directly: Triton's own way to it takes tens of microseconds.

    That is safe since all that Triton would look at is in the key or always alike: addresses are multiples of 16
    bytes, and kernels are not specialized on the number of pieces.
    """
    key = (launch.kernel, device, launch.constants, launch.options)
    compiled = _COMPILED.get(key)
    if compiled is None:
        _COMPILED[key] = launch.kernel[(count,)](*arguments, **dict(launch.options))
    else:
        compiled[(count, 1, 1)](*arguments)
