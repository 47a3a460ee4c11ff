"""Shards, converted by several threads at once.

Threads, not processes: torch, digests and the disk leave Python's lock alone, a conversion begins at once (a process
imports torch for seconds), and kill -9 ends all of it.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

import torch

from ascend_quant.convert.formats import Spec
from ascend_quant.convert.output import Output
from ascend_quant.convert.pieces import Dequantize, Piece, Tools
from ascend_quant.convert.quantized import Quantized
from ascend_quant.convert.quantizer import Quantizer
from ascend_quant.convert.shard_file import Digest, ShardFile, size
from ascend_quant.profile.checkpoints import Checkpoint
from ascend_quant.schemes import Scheme

ON_DEVICES = 4


@dataclass(frozen=True)
class Shard:
    """One file to write.

    Attributes:
        bytes: of the tensors of IN that go into it.
    """

    name: str
    pieces: Sequence[Piece]
    bytes: int


@dataclass(frozen=True)
class Work:
    """What all shards of a conversion share.

    Attributes:
        scheme: None to undo a quantization.
        quantized: None to quantize.
    """

    checkpoint: Checkpoint
    output: Output
    device: torch.device
    scheme: Scheme | None = None
    quantized: Quantized | None = None


class Stopped(Exception):
    """Another shard has failed."""


def convert_all(
    work: Work, shards: Sequence[Shard], workers: int, report: Callable[[int], None]
) -> Iterator[tuple[str, Digest]]:
    """Names and digests of shards as they are finished; the first error ends all workers.

    Args:
        report: is told the bytes of IN that are done, by any thread.

    Raises:
        ConvertError: what is in IN cannot be converted.
        ProfileError: what is in IN cannot be read.
    """
    stop = Event()
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        futures = {pool.submit(convert_shard, work, shard, report, stop): shard for shard in shards}
        try:
            for future in as_completed(futures):
                yield futures[future].name, future.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def convert_shard(work: Work, shard: Shard, report: Callable[[int], None], stop: Event) -> Digest:
    """Write one file, and finish it."""
    outputs = {name: spec for piece in shard.pieces for name, spec in piece.outputs.items()}
    quantizer = None if work.scheme is None else Quantizer(work.scheme, work.device)
    tools, path = Tools(work.device, quantizer, work.quantized), work.output.writing(shard.name)
    try:
        with ShardFile(path, outputs) as file:
            for piece in shard.pieces:
                if stop.is_set():
                    raise Stopped
                piece.write(work.checkpoint, tools, file)
                report(bytes_of(work.checkpoint, piece))
            digest = file.finish()
        work.output.finish_shard(shard.name, digest)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return digest


def bytes_of(checkpoint: Checkpoint, piece: Piece) -> int:
    """Of IN, that go into a piece."""
    if isinstance(piece, Dequantize):  # the shape is that of the weight, not of what holds its codes
        return stored_bytes(checkpoint, piece.part.source)
    return size(Spec(checkpoint.dtype(piece.part.source), piece.part.shape))


def stored_bytes(checkpoint: Checkpoint, name: str) -> int:
    """Of a tensor of IN."""
    return size(Spec(checkpoint.dtype(name), checkpoint.shape(name)))


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch's own threads set aside, see `quantizer`."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_workers(device: torch.device) -> int:
    """One a core; a few that share an accelerator."""
    return {"cpu": cores()}.get(device.type, min(cores(), ON_DEVICES))
