"""Two ranks on vllm-ascend's classes: each holds its slices of what one rank would hold, bit for bit."""

from pathlib import Path

import pytest
import torch

from npu_host import checkpoint, two_ranks, vllm_engine


@pytest.mark.parametrize("way", ["tp", "ep"])
def test_two_ranks_hold_slices_of_what_one_would(tmp_path, way):
    vllm_engine.write_model(tmp_path)
    two_ranks.run(Path(__file__).with_name("one_rank.py"), way, folder=tmp_path)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        expected = checkpoint.expected(checkpoint.state_of(1), rank, 2, expert_parallel=way == "ep")
        for name, pair in expected.items():
            assert all(map(torch.equal, found["held"][name], pair)), f"rank {rank}: {name}"
        assert found["stayed"] and found["digests"][0] == found["digests"][1]
