"""Two ranks on vllm-ascend's classes: each holds its slices of what one rank would hold, bit for bit."""

from pathlib import Path

import pytest

from npu_host import models, two_ranks

CASES = [
    ("tp", models.DENSE),
    pytest.param(
        "tp", models.MOE, marks=pytest.mark.each_version
    ),  # a quarter of a minute each: the one with most in it
    ("ep", models.MOE),
]


@pytest.mark.parametrize(("way", "architecture"), CASES)
def test_two_ranks_hold_slices_of_what_one_would(tmp_path, way, architecture):
    two_ranks.check(Path(__file__).with_name("one_rank.py"), way, architecture, tmp_path)
