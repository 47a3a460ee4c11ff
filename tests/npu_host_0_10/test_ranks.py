"""Two ranks on vllm-ascend 0.10's classes: each holds its slices of what one rank would hold, bit for bit."""

from pathlib import Path

import pytest
import torch
from npu_host import two_ranks

from npu_host_0_10 import checkpoint, engine


@pytest.mark.parametrize(
    ("way", "architecture"),
    [("tp", "Qwen3ForCausalLM"), ("tp", "Qwen3MoeForCausalLM"), ("ep", "Qwen3MoeForCausalLM")],
)
def test_two_ranks_hold_slices_of_what_one_would(tmp_path, way, architecture):
    engine.write_model(tmp_path / "model", architecture)
    two_ranks.run(Path(__file__).with_name("one_rank.py"), way, architecture, folder=tmp_path)
    moe = "Moe" in architecture
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        wanted = checkpoint.expected(moe, checkpoint.state_of(moe, 1), rank, 2, expert_parallel=way == "ep")
        for name, pair in wanted.items():
            assert all(map(torch.equal, found["held"][name], pair)), f"rank {rank}: {name}"
        assert found["stayed"] and found["digests"][0] == found["digests"][1]
