"""The demo with int4 rollouts and a trainer that trains for them: its policies are far closer than int4 leaves them.

How far int4 leaves them, an independent computation says: the demo's start model in float32, with its own weights and
with the oracle's int4.
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

from ascend_quant.demo.report import run_demo
from ascend_quant.demo.task import all_problems, mistake
from ascend_quant.demo.training import Choices

pytestmark = pytest.mark.timeout(900)
STEPS = 3


def answers_of(start: Path) -> tuple[list[dict], torch.Tensor]:
    """The answers that the start model's teacher gives, behind their prompts, and which of their tokens count."""
    tokenizer, answers, counted = AutoTokenizer.from_pretrained(start), [], []
    for problem in all_problems():
        for answer in {problem.answer, mistake(problem)}:
            asked = [{"role": "user", "content": problem.prompt}]
            prompt = tokenizer.apply_chat_template(asked, return_dict=True)["input_ids"]
            answers.append({"prompt_token_ids": [*prompt, *tokenizer(answer).input_ids, tokenizer.eos_token_id]})
            counted += [place >= len(prompt) for place in range(1, len(answers[-1]["prompt_token_ids"]))]
    return answers, torch.tensor(counted)


def mismatch(start: Path, scheme: str) -> float:
    """The k3 estimate of the divergence from the start model, computed in float32, to itself in a scheme."""
    answers, counted = answers_of(start)
    rollout, train = logprobs(start, answers, scheme)[counted], logprobs(start, answers, "bf16")[counted]
    return ((train - rollout).exp() - 1 - (train - rollout)).mean().item()


def test_fake_quantization_brings_the_policies_together(tmp_path):
    run_demo(Choices(("int4_g32-qat",), STEPS, 0, "qwen2"), tmp_path, Console(quiet=True))
    (arm,) = json.loads((tmp_path / "report.json").read_text())["arms"]
    assert (arm["name"], arm["fake_quantization"], arm["corrected"]) == ("int4_g32-qat", "int4_g32", True)
    assert len(arm["steps"]) == STEPS
    start = tmp_path / "start"
    for step in arm["steps"]:
        assert step["ess"] > 0 and step["tokens_per_second"] > 0
        assert 0 < step["rollout_seconds"] < step["step_seconds"]
    assert all(receipt["changed"] > 0 for receipt in arm["receipts"][1:])
    found, without = fmean(step["k3_kl"] for step in arm["steps"]), mismatch(start, "int4_g32")
    print(found, without)
    assert without >= 5 * found > 0
