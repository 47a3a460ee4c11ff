"""Conversion of several shards at once, by threads.

Threads, not processes: torch and disk I/O release the GIL, no process has to import torch for seconds, and
kill -9 ends everything.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from threading import Event

import torch

from ascend_quant.convert.output import Output
from ascend_quant.convert.plan import Plan
from ascend_quant.convert.quantizer import Quantizer
from ascend_quant.convert.shard_file import ShardFile, size
from ascend_quant.profile.checkpoints import Checkpoint


class Stopped(Exception):
    """Raised in a worker after another shard has failed."""


def write_shards(
    checkpoint: Checkpoint,
    plan: Plan,
    shards: Sequence[str],
    output: Output,
    workers: int,
    quantizer: Callable[[], Quantizer | None],
    report: Callable[[int], None],
) -> None:
    """Write shards; the first error ends all workers.

    Args:
        shards: names of the shards to write.
        quantizer: creates a quantizer for a thread, or returns None if the conversion dequantizes.
        report: called by any thread with the finished bytes of OUT.

    Raises:
        BadCheckpoint: a tensor of IN cannot be read or converted.
    """
    stop = Event()

    def write(shard: str) -> None:
        path, own = output.writing(shard), quantizer()
        try:
            with ShardFile(path, plan.outputs(shard)) as file:
                for piece in plan.shards[shard]:
                    if stop.is_set():
                        raise Stopped
                    piece.write(checkpoint, own, file)
                    report(sum(map(size, piece.outputs.values())))
                file.finish()
            output.finish(shard)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        futures = [pool.submit(write, shard) for shard in shards]
        try:
            for future in as_completed(futures):
                future.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread inside the block, see `quantizer`."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def default_workers() -> int:
    """Return the default number of threads: one per usable core."""
    return len(os.sched_getaffinity(0))
