"""The demo with int4 rollouts: trained for them, the policies of trainer and engine are far closer than otherwise.

The other arm has no importance weights, on which the difference of the policies does not depend.
"""

import json
from statistics import fmean

import pytest

pytest.importorskip("verl", reason="the demo needs verl")

from rich.console import Console

from launch.demo.options import choices
from launch.demo.run import run_demo

pytestmark = pytest.mark.timeout(900)
ARMS = ("int4_g32-uncorrected", "int4_g32-qat")


def test_fake_quantization_brings_the_policies_together(tmp_path):
    run_demo(choices(",".join(ARMS), False, 3, "token", 0, "qwen2"), tmp_path, Console(quiet=True))
    plain, trained = json.loads((tmp_path / "report.json").read_text())["arms"]
    assert (plain["name"], trained["name"]) == ARMS
    assert (plain["fake_quantization"], trained["fake_quantization"]) == (None, "int4_g32")
    assert (plain["corrected"], trained["corrected"]) == (False, True)
    assert all("ess" not in step for step in plain["steps"]) and all(step["ess"] > 0 for step in trained["steps"])
    for arm in (plain, trained):
        assert arm["start_seconds"] > 0 and all(step["tokens_per_second"] > 0 for step in arm["steps"])
        assert all(0 < step["rollout_seconds"] < step["step_seconds"] for step in arm["steps"])
    found = [fmean(step["k3_kl"] for step in arm["steps"]) for arm in (plain, trained)]
    print(found)
    assert found[0] >= 5 * found[1] > 0
    assert all(receipt["changed"] > 0 for arm in (plain, trained) for receipt in arm["receipts"][1:])
