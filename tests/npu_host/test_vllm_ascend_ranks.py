"""Two ranks on vllm-ascend's classes: each holds its slices of what one rank would hold, bit for bit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from npu_host import checkpoint

TESTS = Path(__file__).parents[1]
SCRIPT = TESTS / "npu_host/one_rank.py"
SECONDS = 200


@pytest.mark.parametrize("way", ["tp", "ep"])
def test_two_ranks_hold_slices_of_what_one_would(tmp_path, way):
    # vllm-ascend sets this in its process, for an allocator that is not here
    environment = {name: value for name, value in os.environ.items() if name != "PYTORCH_NPU_ALLOC_CONF"}
    environment["PYTHONPATH"] = f"{TESTS.parent}:{TESTS}"
    ranks = [
        subprocess.Popen(
            [sys.executable, SCRIPT, str(rank), "2", way, tmp_path],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=SECONDS)[0].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(output[-3000:] for output in outputs)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        expected = checkpoint.expected(checkpoint.state_of(1), rank, 2, expert_parallel=way == "ep")
        for name, pair in expected.items():
            assert all(map(torch.equal, found["held"][name], pair)), f"rank {rank}: {name}"
        assert found["stayed"] and found["digests"][0] == found["digests"][1]
