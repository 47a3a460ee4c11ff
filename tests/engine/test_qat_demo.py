"""The demo with int4 rollouts and a trainer that trains for them: its policies are far closer than int4 leaves them.

How far that is, an independent computation says: the demo's start model in float32, its weights as they are and the
oracle's int4.
"""

import json
from pathlib import Path
from statistics import fmean

import pytest
import torch
from oracle_model import logprobs
from transformers import AutoTokenizer

pytest.importorskip("verl", reason="the demo needs verl")

from rich.console import Console

from launch.demo.run import choices, run_demo
from launch.demo.tasks import all_problems, mistake

pytestmark = pytest.mark.timeout(900)
STEPS = 3


def mismatch_of_int4(start: Path) -> float:
    """The k3 estimate of the divergence that int4 makes of the start model, over the answers that its teacher gives."""
    tokenizer, answers, counted = AutoTokenizer.from_pretrained(start), [], []
    for problem in all_problems():
        for answer in {problem.answer, mistake(problem)}:
            asked = [{"role": "user", "content": problem.prompt}]
            prompt = tokenizer.apply_chat_template(asked, return_dict=True)["input_ids"]
            answers.append({"prompt_token_ids": [*prompt, *tokenizer(answer).input_ids, tokenizer.eos_token_id]})
            counted += [place >= len(prompt) for place in range(1, len(answers[-1]["prompt_token_ids"]))]
    rollout, train = (logprobs(start, answers, scheme)[torch.tensor(counted)] for scheme in ("int4_g32", "bf16"))
    return ((train - rollout).exp() - 1 - (train - rollout)).mean().item()


def test_fake_quantization_brings_the_policies_together(tmp_path):
    run_demo(choices("int4_g32-qat", False, STEPS, "token", 0, "qwen2"), tmp_path, Console(quiet=True))
    (arm,) = json.loads((tmp_path / "report.json").read_text())["arms"]
    assert (arm["name"], arm["fake_quantization"], arm["corrected"]) == ("int4_g32-qat", "int4_g32", True)
    assert arm["start_seconds"] > 0 and len(arm["steps"]) == STEPS
    for step in arm["steps"]:
        assert step["ess"] > 0 and step["tokens_per_second"] > 0
        assert 0 < step["rollout_seconds"] < step["step_seconds"]
    assert all(receipt["changed"] > 0 for receipt in arm["receipts"][1:])
    found, without = fmean(step["k3_kl"] for step in arm["steps"]), mismatch_of_int4(tmp_path / "start")
    print(found, without)
    assert without >= 5 * found > 0
