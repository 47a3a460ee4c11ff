"""Real TRL, beside an engine of its process and against `vllm serve`: each sync gives a fresh engine's bytes.

It runs the example of docs/trainers.md, with a small model in the place of the large one.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import gloo_wire
import pytest
from engines import engine, logprobs, refit
from models import make
from naming import has_line_naming
from served import server

ROOT = Path(__file__).parents[2]
EXAMPLE = re.search(r"```python\n(.*?)```", (ROOT / "docs/trainers.md").read_text(), re.DOTALL)[1]
STEPS = 4
LIKE_TRL = {"enforce_eager": False, "max_model_len": 256, "max_num_batched_tokens": 4096, "max_num_seqs": 8}
LORA = "args=config, peft_config=__import__('peft').LoraConfig(target_modules='all-linear'),"
OURS = os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]])  # for a process that a test starts


def example(folder: Path, model: Path, *changes: tuple[str, str]) -> subprocess.CompletedProcess:
    """Run the example with these changes of its text."""
    code = EXAMPLE
    for old, new in (
        ("Qwen/Qwen2.5-0.5B-Instruct", str(model)),
        ("learning_rate=1e-6", "learning_rate=1e-2, use_cpu=True"),
        ("trainer.train()", "__import__('trl_beside').train(trainer)"),
        *changes,
    ):
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    (folder / "example.py").write_text(code)
    command = [sys.executable, "example.py"]
    variables = os.environ | {"PYTHONPATH": OURS, "VLLM_LOGGING_LEVEL": "INFO"}  # TRL's own is ERROR
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=600)


def trained(folder: Path, model: Path, *changes: tuple[str, str]) -> dict:
    """Run it to its end: what `trl_beside` found, and `said`, the program's output."""
    run = example(folder, model, *changes)
    assert run.returncode == 0, (run.stdout + run.stderr)[-4000:]
    return {**json.loads((folder / "beside.json").read_text()), "said": run.stdout + run.stderr}


def check_colocated(folder: Path, scheme: str, told: dict, steps: Iterable[int] = range(STEPS)) -> None:
    """After these syncs TRL's engine had what an engine has that started on that step's checkpoint."""
    assert len(told["held"]) == STEPS == len({held["digest"] for held in told["held"]})
    for step in steps:
        held = told["held"][step]
        with engine(folder / f"step-{step}", scheme, logprobs_mode="processed_logprobs", **LIKE_TRL) as fresh:
            assert refit(fresh).last_receipt.digest == held["digest"], step
            assert logprobs(fresh).tolist() == held["logprobs"], step


def test_the_pages_example_trains_with_int8_rollouts(tmp_path):
    told = trained(tmp_path, make("qwen2", tmp_path))
    check_colocated(tmp_path, "int8", told, steps=(1, STEPS - 1))  # an engine compiles for half a minute
    steps = [line for line in told["log"] if "reward" in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert all(0 < line["sampling/sampling_logp_difference/mean"] < 0.3 for line in steps), steps
    assert all(line["sampling/importance_sampling_ratio/max"] <= 2.0 for line in steps), steps
    assert "scheme int8" in told["said"]
    assert gloo_wire.digests(told["said"])[1:] == [held["digest"] for held in told["held"]]


@pytest.mark.parametrize(
    ("scheme", "kind", "changes"),
    [
        ("int8", "qwen2", []),
        ("bf16", "qwen2", []),
        ("int8", "qwen2-tied", []),
        ("int8", "qwen2", [("learning_rate=1e-2", "learning_rate=1e-1"), ("args=config,", LORA)]),
    ],
    ids=["int8", "bf16", "tied", "lora"],
)
def test_other_ways_of_trl(tmp_path, scheme: str, kind: str, changes: list[tuple[str, str]]):
    """INT8; BF16 with our checks; one tensor for embedding and `lm_head`; LoRA, which TRL merges for a sync."""
    told = trained(tmp_path, make(kind, tmp_path), ('"int8"', f'"{scheme}"'), *changes)
    check_colocated(tmp_path, scheme, told)


def test_trl_trains_against_vllm_serve(tmp_path):
    """And ends with the server's reason where a sync is refused."""
    options = ("--quantization", "ascend_quant", "--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1")
    variables = {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": OURS}
    with server(tmp_path, *options, *gloo_wire.OPTIONS, **variables) as (address, log):
        against = (
            ('vllm_mode="colocate"', f'vllm_mode="server", vllm_server_base_url="{address}"'),
            ("vllm_gpu_memory_utilization=0.3", f"vllm_group_port={gloo_wire.free_port()}"),
            ("max_completion_length=64", "max_completion_length=32"),  # of the server's 64
            ("trainer = GRPO", "__import__('trl_beside').over_gloo()\n    trainer = GRPO"),
        )
        trained(tmp_path, tmp_path / "qwen2-0", *against)
        start, *synced = gloo_wire.digests(log.read_text())
        (elsewhere := tmp_path / "spoilt").mkdir()
        spoilt = example(elsewhere, tmp_path / "qwen2-0", *against, ("beside').train(", "beside').spoil_and_train("))
    assert spoilt.returncode == 1 and has_line_naming(spoilt.stderr, "409", "model.norm.weight", "NaN"), spoilt.stderr
    assert len(synced) == STEPS == len(set(synced)) and synced[0] == start
    for step, digest in enumerate(synced):
        with engine(tmp_path / f"step-{step}") as fresh:
            assert refit(fresh).last_receipt.digest == digest, step
