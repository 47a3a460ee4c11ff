"""FlashRL's way from end to end: profile, setup, an engine that FLASHRL_CONFIG quantizes, rollouts, a refit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoint_pairs import quantize
from engines import engine, logprobs
from models import checkpoint, fused, is_quantized, make, save
from typer.testing import CliRunner

from ascend_quant.commands.app import app

HERE = Path(__file__).parent


def command(*arguments: object) -> None:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output


def engine_with(config: Path, *folders: Path) -> dict:
    """What `workflow_engine.py` saw."""
    out = config.with_suffix(".pt")
    run = subprocess.run(
        [sys.executable, str(HERE / "workflow_engine.py"), str(out), *map(str, folders)],
        env={**os.environ, "PYTHONPATH": str(HERE), "FLASHRL_CONFIG": str(config)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return torch.load(out, weights_only=False)


def moved(folder: Path, bf16: Path) -> Path:
    """The same model much later in training: some rows have grown beyond what frozen scales can hold."""
    state = checkpoint(bf16)
    generator = torch.Generator().manual_seed(1)
    for name, tensor in state.items():
        if name.endswith("_proj.weight"):
            grown = 1 + 0.6 * torch.rand(len(tensor), 1, generator=generator)
            state[name] = (tensor.float() * grown).to(tensor.dtype)
    make_like = folder / "moved"
    subprocess.run(["cp", "-r", str(bf16), str(make_like)], check=True)
    save(state, make_like)
    return make_like


@pytest.fixture(scope="module", params=["qwen2", "qwen3-moe"])
def seen(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    bf16 = make(request.param, folder)
    pair = quantize(bf16, folder / "w8a8")
    command("profile", "-m", bf16, "-q", pair.w8a8, "-o", folder / "profile", "--fn", "int8")
    following = moved(folder, bf16)
    found = {}
    for how, flags in (("frozen", ["--frozen-scales"]), ("fresh", [])):
        config = folder / f"{how}.yaml"
        command("setup", "-m", pair.w8a8, "-p", folder / "profile", "--fn", "int8", "-o", config, *flags)
        found[how] = engine_with(config, bf16, following)
    with engine(following, scheme="bf16") as llm:
        found["exact"] = logprobs(llm)
    return pair, found


def test_unchanged_weights_give_the_codes_of_the_w8a8_checkpoint(seen):
    pair, found = seen
    w8a8 = checkpoint(pair.w8a8)
    codes = fused({name: tensor for name, tensor in w8a8.items() if not name.endswith("_scale")})
    held = found["frozen"]["start"]["resident"]
    wrong, count = 0, 0
    for name in filter(is_quantized, codes):
        difference = (held[name].int() - codes[name].int()).abs()
        assert difference.max() <= 1, name
        wrong, count = wrong + int(difference.sum()), count + difference.numel()
    assert wrong <= 0.001 * count


def test_after_the_weights_moved_fresh_scales_are_no_worse_than_frozen_ones(seen):
    _, found = seen
    error = {how: (found[how]["after"]["logprobs"] - found["exact"]).abs().mean() for how in ("frozen", "fresh")}
    assert error["fresh"] <= error["frozen"]
    lost = {how: found[how]["after"]["receipt"].clamped for how in ("frozen", "fresh")}
    assert lost["fresh"] == 0 < lost["frozen"]


def test_the_refit_changed_the_rollouts(seen):
    _, found = seen
    for how in ("frozen", "fresh"):
        assert found[how]["after"]["receipt"].number == 2
        assert not torch.equal(found[how]["start"]["logprobs"], found[how]["after"]["logprobs"])
