"""Two ranks of an engine, each a process of its own: each holds its slices of what one rank would hold."""

import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from npu_host import checkpoint, models

TESTS = Path(__file__).parents[1]
SECONDS = 200


def check(script: Path, way: str, architecture: str, folder: Path) -> None:
    """Codes and scales of both ranks against the oracle's, bit for bit.

    Args:
        script: the one_rank.py for the installed version.
        way: tp or ep.
    """
    models.write_model(folder / "model", architecture)
    run(script, way, architecture, folder=folder)
    moe = "Moe" in architecture
    for rank in range(2):
        found = torch.load(folder / f"{rank}.pt")
        wanted = checkpoint.expected(moe, checkpoint.state_of(moe, 1), rank, 2, expert_parallel=way == "ep")
        for name, pair in wanted.items():
            assert all(map(torch.equal, found["held"][name], pair)), f"rank {rank}: {name}"
        assert found["stayed"] and found["digests"][0] == found["digests"][1]


def environment() -> dict[str, str]:
    """Of a process of its own, with tests/ in PYTHONPATH."""
    # vllm-ascend sets this in its process, for an allocator that is not here
    kept = {name: value for name, value in os.environ.items() if name != "PYTORCH_NPU_ALLOC_CONF"}
    return {**kept, "PYTHONPATH": f"{TESTS.parent}:{TESTS}"}


def run(script: Path, *arguments: str, folder: Path) -> None:
    """`python script RANK 2 arguments.. folder` for both ranks, with tests/ in PYTHONPATH.

    Raises:
        AssertionError: with their last words, unless both ended well.
    """
    logs = [folder / f"{rank}.log" for rank in range(2)]
    ranks = []
    for rank, log in enumerate(logs):
        command = [sys.executable, script, str(rank), "2", *arguments, folder]
        with log.open("w") as out:
            ranks.append(subprocess.Popen(command, env=environment(), stdout=out, stderr=subprocess.STDOUT))
    try:
        codes = _wait(ranks)
    finally:
        for rank in ranks:
            rank.kill()
    assert codes == [0, 0], "\n".join(log.read_text()[-3000:] for log in logs)


def _wait(ranks: list[subprocess.Popen]) -> list[int | None]:
    """Exit codes, once all have ended, one has failed (the other would wait for it) or time is up."""
    until = time.monotonic() + SECONDS
    while True:
        codes = [rank.poll() for rank in ranks]
        if None not in codes or any(codes) or time.monotonic() > until:
            return codes
        time.sleep(0.1)
