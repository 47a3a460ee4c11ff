"""A broadcast as large as fsdp2 makes when rank 0 alone loads a model: the embedding of a 7B, 2.2 GB in float32.

A pull request to verl (6834) names a fault of HCCL's with such tensors, and a way around it; no issue of HCCL's does.
"""

import multiprocessing
import queue
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ascend_quant.smoke.probes import On, Seen, probe

ELEMENTS, FEW = 152064 * 3584, 1000
BACKENDS = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}
WAIT_S = 100


@probe(
    "collective.broadcast",
    "a broadcast of 2.2 GB from rank 0 brings every byte",
    ("cuda", "npu"),
    True,
    120,
    ranks=2,
)
def broadcast(on: On) -> Seen:
    started = multiprocessing.get_context("spawn")
    count = FEW if on.small else ELEMENTS
    with tempfile.TemporaryDirectory(prefix="aq-smoke-") as folder:
        answers = started.Queue()
        both = [
            started.Process(target=_of_rank, args=(rank, on.device.type, count, folder, answers)) for rank in (0, 1)
        ]
        for one in both:
            one.start()
        try:
            found = dict(_answer(answers, both) for _ in both)
        finally:
            for one in both:
                one.kill()
                one.join()
    return judged(found, count)


def _answer(answers: Any, ranks: Sequence[Any]) -> tuple[int, dict[str, Any]]:
    """Return the next rank's answer; raise if a rank has ended without one, whose own words are in the log."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            return answers.get(timeout=1)
        except queue.Empty:
            for rank, one in enumerate(ranks):
                if one.exitcode:
                    raise RuntimeError(f"rank {rank} ended with {one.exitcode}") from None
            if time.monotonic() > end:
                raise RuntimeError(f"no answer of both ranks within {WAIT_S} s") from None


def judged(found: dict[int, dict[str, Any]], count: int) -> Seen:
    """Judge what the ranks have told: seconds, and the number of elements that are not those that were sent."""
    seen = Seen({"bytes": 4 * count, "seconds": max(one["seconds"] for one in found.values())})
    for rank, one in sorted(found.items()):
        seen.holds(one["apart"] == 0, f"rank {rank}: {one['apart']} of {count} elements are not those that were sent")
    return seen


def _of_rank(rank: int, kind: str, count: int, folder: str, answers: Any) -> None:
    import torch.distributed as dist

    if kind == "npu":
        import_module("torch_npu")
    device = torch.device(kind, rank) if kind != "cpu" else torch.device(kind)
    if kind != "cpu":
        torch.get_device_module(device).set_device(device)
    dist.init_process_group(BACKENDS[kind], init_method=f"file://{Path(folder, 'ranks')}", rank=rank, world_size=2)
    wanted = torch.arange(count, dtype=torch.int32, device=device)
    sent = wanted.clone() if rank == 0 else torch.zeros_like(wanted)
    dist.broadcast(torch.zeros(1, device=device), 0)  # the connection is there
    begun = time.perf_counter()
    dist.broadcast(sent.view(torch.float32), 0)
    apart = int((sent != wanted).sum())
    answers.put((rank, {"seconds": round(time.perf_counter() - begun, 2), "apart": apart}))
    answers.close()
    answers.join_thread()
    dist.destroy_process_group()
