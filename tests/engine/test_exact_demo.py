"""The demo's exact arm: in every step the trainer has the engine's log-probabilities, and the policy moves."""

import pytest

pytest.importorskip("verl", reason="the demo needs verl")
pytest.importorskip("vllm", reason="the engine tests need vLLM")

from rich.console import Console

from ascend_quant.demo.report import run_demo
from ascend_quant.demo.training import Choices, read_lines

VERL = "ascend_quant/integrations/verl"
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.long("ascend_quant/exact", f"{VERL}/training/exact", "ascend_quant/demo"),
]
STEPS, ANSWERS, LONGEST = 3, 64, 4  # answers of the first mini-batch, and tokens of an answer


def test_no_token_is_unequal_and_k3_is_0(tmp_path):
    (arm,) = run_demo(Choices(("int8-exact",), STEPS, 1, "qwen2"), tmp_path, Console(quiet=True))["arms"]
    assert len(arm["steps"]) == STEPS and not arm["corrected"]
    for step in arm["steps"]:
        assert ANSWERS <= step["compared"] <= ANSWERS * LONGEST
        assert step["unequal"] == step["k3_kl"] == 0
    logged = [line["data"] for line in read_lines(tmp_path / "int8-exact" / "metrics.jsonl")]
    assert all(data["actor/ppo_kl"] != 0 for data in logged), "of all updates of a step: the policy moves"
    assert len({receipt["digest"] for receipt in arm["receipts"]}) == STEPS
