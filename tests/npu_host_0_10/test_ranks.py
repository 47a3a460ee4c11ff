"""Two ranks on vllm-ascend 0.10's classes: each holds its slices of what one rank would hold, bit for bit."""

from pathlib import Path

import pytest
from npu_host import models, two_ranks


@pytest.mark.parametrize(("way", "architecture"), [("tp", models.DENSE), ("tp", models.MOE), ("ep", models.MOE)])
def test_two_ranks_hold_slices_of_what_one_would(tmp_path, way, architecture):
    two_ranks.check(Path(__file__).with_name("one_rank.py"), way, architecture, tmp_path)
