"""The demo with int4 rollouts and a trainer that trains for them: its policies are far closer than int4 leaves them.

How far that is, an independent computation says: the demo's start model in float32, its weights as they are and the
oracle's int4. The same computation says why there is nothing to win with int8: most of it comes of the activations.
"""

import json
from pathlib import Path
from statistics import fmean

import pytest
import torch
from models import is_quantized
from oracle_model import logprobs
from transformers import AutoModelForCausalLM, AutoTokenizer

pytest.importorskip("verl", reason="the demo needs verl")

from rich.console import Console

from ascend_quant import oracle
from ascend_quant.demo.report import run_demo
from ascend_quant.demo.task import all_problems, mistake
from ascend_quant.demo.training import Choices
from ascend_quant.schemes import get_scheme

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


def mismatch(start: Path, trained: Path, scheme: str) -> float:
    """The k3 estimate of the divergence from a model that computes in float32 to the start model in a scheme."""
    answers, counted = answers_of(start)
    rollout, train = logprobs(start, answers, scheme)[counted], logprobs(trained, answers, "bf16")[counted]
    return ((train - rollout).exp() - 1 - (train - rollout)).mean().item()


def with_weights_of_int8(start: Path, folder: Path) -> Path:
    """The start model with what int8 codes and scales stand for, in float32: what int8 QAT computes with."""
    model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    for name, w in model.named_parameters():
        if is_quantized(name):
            w.data.copy_(oracle.dequantize(*oracle.quantize(w.data, get_scheme("int8"))))
    model.save_pretrained(folder)
    return folder


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
    found, without = fmean(step["k3_kl"] for step in arm["steps"]), mismatch(start, start, "int4_g32")
    print(found, without)
    assert without >= 5 * found > 0
    plain, qat = (
        mismatch(start, trained, "int8") for trained in (start, with_weights_of_int8(start, tmp_path / "fake"))
    )
    print(plain, qat)
    assert qat > plain / 2 > 0  # docs/low_precision.md: int8 QAT does not pay
