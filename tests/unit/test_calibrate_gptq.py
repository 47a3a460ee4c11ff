"""`--calibrate` with the real llm-compressor: better than rounding to nearest, in the same form, every expert included.

llm-compressor needs an environment of its own (pyproject.toml's extra `calibrate`): skipped where it is not installed.
Seen with llm-compressor 0.14.0.1, transformers 5.17.0, compressed-tensors 0.19.0, torch 2.13.0 on a CPU.
"""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from convert_cases import assert_same, read
from naming import line_naming

pytest.importorskip("llmcompressor", reason="llm-compressor is not installed: pip install '.[calibrate]'")
import calibrate_cases as cases

from ascend_quant.convert import Request, convert, gptq
from ascend_quant.convert.calibrate import Calibration, calibrate
from ascend_quant.profile.checkpoints import BadCheckpoint
from ascend_quant.schemes import get_scheme

SCHEMES = {"qwen2": "int4_g32", "qwen3-moe": "int4_g128"}
SAMPLES = 64
COMMAND = [sys.executable, "-c", "import typer; from ascend_quant.commands.convert import convert; typer.run(convert)"]


def command(source: Path, out: Path, scheme: str, text: Path, samples: int = SAMPLES) -> list[str]:
    """The command's words."""
    options = ["--calibrate", text, "--samples", samples, "--seq-len", cases.LENGTH, "--json"]
    return [*COMMAND, *map(str, [source, out, "--scheme", scheme, *options])]


@pytest.fixture(scope="module", params=list(SCHEMES))
def made(request, tmp_path_factory) -> SimpleNamespace:
    """A model that has learnt, and its int4 checkpoints: rounded, and calibrated by the command."""
    folder, scheme = tmp_path_factory.mktemp("made"), SCHEMES[request.param]
    source = cases.learnt(request.param, folder / "in")
    text = cases.write_texts(folder / "texts.jsonl", 100, seed=2)
    convert(Request(source, folder / "rounded", scheme))
    words = command(source, folder / "calibrated", scheme, text)
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(folder=folder, source=source, kind=request.param, scheme=scheme, stdout=done.stdout)


def test_the_form_is_that_of_rounding_and_every_layer_is_gptqs(made):
    said = json.loads(made.stdout)  # all that it has
    assert said["scheme"] == made.scheme and said["out"] == str(made.folder / "calibrated")
    assert not list(made.folder.glob("*.calibrating-*")) and not list(made.folder.glob("*.partial"))
    rounded, found = read(made.folder / "rounded"), read(made.folder / "calibrated")
    assert (made.folder / "calibrated" / "config.json").read_text() == (
        made.folder / "rounded" / "config.json"
    ).read_text()
    codes = {name for name in rounded if name.endswith(".weight_packed")}
    scales = {name.replace("_packed", "_scale") for name in codes}
    experts = 4 if made.kind == "qwen3-moe" else 0
    assert len(codes) == 2 * (4 + 3 * (experts or 1))
    assert sum(".experts." in name for name in codes) == 2 * 3 * experts
    assert_same({n: t for n, t in found.items() if n not in codes | scales}, {
        n: t for n, t in rounded.items() if n not in codes | scales
    })  # fmt: skip
    for name in codes | scales:
        assert found[name].dtype == rounded[name].dtype and found[name].shape == rounded[name].shape, name
        assert not torch.equal(found[name], rounded[name]), name


def test_the_model_says_more_nearly_what_it_said_than_after_rounding(made, tmp_path):
    held_out_BS = cases.tokens(64, seed=3)
    true_BSV, divergence = cases.log_probabilities(made.source, held_out_BS), {}
    for out in ("rounded", "calibrated"):
        convert(Request(made.folder / out, tmp_path / out, "bf16"))
        divergence[out] = cases.divergence(true_BSV, cases.log_probabilities(tmp_path / out, held_out_BS))
    print(made.kind, made.scheme, divergence)
    assert divergence["calibrated"] < 0.5 * divergence["rounded"]


def untrained(kind: str, folder: Path) -> Path:
    """A random model."""
    return cases.learnt(kind, folder, steps=0)


def test_codes_and_scales_are_those_that_llm_compressor_writes(tmp_path):
    """By its own way of saving a model; names of experts included."""
    source, scheme = untrained("qwen3-moe", tmp_path / "in"), get_scheme("int4_g32")
    convert(Request(source, tmp_path / "rounded", scheme.name))
    ending = ".weight_packed"
    layers = [name.removesuffix(ending) for name in read(tmp_path / "rounded") if name.endswith(ending)]
    gptq.require()
    model = gptq.load(source, layers)
    gptq.solve(model, scheme, layers, cases.tokens(4, seed=2))
    solved = {layer: gptq.codes_and_scale(model, layer, scheme) for layer in layers}
    model.save_pretrained(tmp_path / "theirs", save_compressed=True)
    theirs = read(tmp_path / "theirs")
    assert {name for name in theirs if name.endswith(ending)} == {f"{layer}{ending}" for layer in layers}
    for layer, (codes_NK, scale_NG) in solved.items():
        words = sum((codes_NK[:, i::8].long() + 8) << 4 * i for i in range(8))
        assert torch.equal(theirs[f"{layer}{ending}"].long() % 2**32, words), layer
        assert torch.equal(theirs[f"{layer}.weight_scale"], scale_NG), layer


def test_what_calibration_refuses(tmp_path):
    source, out = untrained("qwen2", tmp_path / "in"), tmp_path / "out"
    calibration = Calibration(cases.write_texts(tmp_path / "texts.jsonl", 20, seed=2), 2, 64)
    if not torch.cuda.is_available():
        with pytest.raises(BadCheckpoint, match=line_naming("llm-compressor", "--device cpu")):
            calibrate(Request(source, out, "int4_g128", device="cuda"), calibration)
    with pytest.raises(BadCheckpoint, match=line_naming("model.layers.9.up (and 0 more)", "no linear layer")):
        gptq.load(source, ["model.layers.0.mlp.up_proj", "model.layers.9.up"])
    assert not out.exists()
