"""`--calibrate` without llm-compressor: what is put into a checkpoint, what is refused.

Shape suffixes: N output channels, K input channels, G groups of a row.
"""

import hashlib
import json
import re
from importlib.util import find_spec
from pathlib import Path

import convert_cases
import pytest
import torch
from naming import has_line_naming, line_naming

pytest.importorskip("transformers", reason="transformers is not installed")
import calibrate_cases as cases
from command_runs import plain, runner

from ascend_quant import oracle
from ascend_quant.commands.convert import convert as command
from ascend_quant.convert import Request, convert, gptq
from ascend_quant.convert.calibrate import Calibration, calibrate, put
from ascend_quant.profile.checkpoints import BadCheckpoint
from ascend_quant.schemes import get_scheme

run = runner(command)


@pytest.fixture
def source(tmp_path) -> Path:
    """A checkpoint with a tokenizer of 23 tokens, for at most 128 of them."""
    config = convert_cases.CONFIG | {"max_position_embeddings": 128, "vocab_size": len(cases.VOCABULARY)}
    folder = convert_cases.write(tmp_path / "in", convert_cases.state(), config=config)
    cases.tokenizer().save_pretrained(folder)
    return folder


def solved(layer: str, shape: tuple[int, int], group: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """Random codes -8 ... 7 and scales, by a layer's name."""
    generator = torch.Generator().manual_seed(int(hashlib.sha256(layer.encode()).hexdigest()[:8], 16))
    codes_NK = torch.randint(-8, 8, shape, generator=generator, dtype=torch.int8)
    scale_NG = torch.rand(shape[0], shape[1] // group, generator=generator).to(torch.bfloat16)
    return codes_NK, scale_NG


def test_codes_and_scales_are_put_in_with_their_digests_and_nothing_else_changes(source, tmp_path):
    originals = convert_cases.read(source)
    shapes = {name.removesuffix(".weight"): tensor.shape for name, tensor in originals.items()}
    for out in ("rounded", "calibrated"):
        convert(Request(source, tmp_path / out, "int4_g128"))
    put(tmp_path / "calibrated", lambda layer: solved(layer, shapes[layer]), {"samples": 3})
    rounded, found = (convert_cases.read(tmp_path / out) for out in ("rounded", "calibrated"))
    wanted = dict(rounded)
    for name in (name for name in rounded if name.endswith(".weight_packed")):
        layer = name.removesuffix(".weight_packed")
        codes_NK, wanted[f"{layer}.weight_scale"] = solved(layer, shapes[layer])
        words = sum((codes_NK[:, i::8].long() + 8) << 4 * i for i in range(8))
        wanted[name] = torch.where(words >= 2**31, words - 2**32, words).int()
        assert not torch.equal(wanted[name], rounded[name])
    convert_cases.assert_same(found, wanted)
    assert not list((tmp_path / "calibrated").glob("*.writing"))
    before, after = (
        json.loads((tmp_path / out / "ascend_quant_manifest.json").read_text()) for out in ("rounded", "calibrated")
    )
    assert after.pop("calibration") == {"samples": 3}
    for name, digest in after["files"].items():
        content = (tmp_path / "calibrated" / name).read_bytes()
        assert digest == {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}, name
        assert (digest == before["files"][name]) != name.endswith(".safetensors")
    assert {**after, "files": 0} == {**before, "files": 0}
    convert(Request(tmp_path / "calibrated", tmp_path / "back", "bf16"))  # codes of -8 included
    for name, tensor in convert_cases.read(tmp_path / "back").items():
        wanted = originals[name]
        if convert_cases.is_quantized(name):
            codes_NK, scale_NG = solved(name.removesuffix(".weight"), wanted.shape)
            wanted = (codes_NK.double() * scale_NG.double().repeat_interleave(128, 1)).to(torch.bfloat16)
        assert torch.equal(tensor, wanted), name
    with pytest.raises(BadCheckpoint, match=re.escape("(5, 32)")):
        put(tmp_path / "rounded", lambda layer: solved(layer, (5, 256)), {})


def test_a_layer_that_gptq_has_made_zero_is_an_error_unless_it_was(tmp_path):
    tensors = convert_cases.state(experts=False)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in tensors.items() if convert_cases.is_quantized(name)}
    for out, state in (("all", tensors), ("none", tensors | zeros)):
        source = convert_cases.write(tmp_path / f"{out}-in", state)
        convert(Request(source, tmp_path / out, "int4_g128"))

    def solved_as_zero(layer: str) -> tuple[torch.Tensor, torch.Tensor]:
        shape = tensors[f"{layer}.weight"].shape
        return torch.zeros(shape, dtype=torch.int8), solved(layer, shape)[1]

    put(tmp_path / "none", solved_as_zero, {})
    with pytest.raises(BadCheckpoint, match=r"--ignore model\.layers"):
        put(tmp_path / "all", solved_as_zero, {})


def layer_of(w_NK: torch.Tensor, scale_NG: torch.Tensor | None) -> torch.nn.Module:
    """A model with one layer, as llm-compressor leaves it."""
    linear = torch.nn.Linear(*reversed(w_NK.shape), bias=False, dtype=torch.bfloat16)
    linear.weight.data = w_NK
    if scale_NG is not None:
        linear.weight_scale = torch.nn.Parameter(scale_NG, requires_grad=False)
    return torch.nn.ModuleDict({"up": linear})


def test_codes_are_read_off_a_weight_that_lies_on_the_grid():
    codes_NK, scale_NG = solved("up", (16, 256), 32)
    w_NK = oracle.dequantize(codes_NK, scale_NG).to(torch.bfloat16)
    found = gptq.codes_and_scale(layer_of(w_NK, scale_NG), "up", get_scheme("int4_g32"))
    assert torch.equal(found[0], codes_NK) and torch.equal(found[1], scale_NG)
    off_NK = w_NK.clone()
    off_NK[3, 5] += scale_NG[3, 0] / 4
    for layer in (layer_of(w_NK, None), layer_of(off_NK, scale_NG)):  # which GPTQ has left out
        with pytest.raises(BadCheckpoint, match=r"^up:"):
            gptq.codes_and_scale(layer, "up", get_scheme("int4_g32"))


def test_options_that_do_not_go_together_or_with_the_text(source, tmp_path):
    text = cases.write_texts(tmp_path / "t.jsonl", 5, seed=1)
    for options, named in (
        (("--scheme", "int8", "--calibrate", text), "int4_g128 and int4_g32 … int8"),
        (("--scheme", "bf16", "--calibrate", text), "int4_g128 and int4_g32 … bf16"),
        (("--scheme", "int4_g32", "--samples", "3"), "--calibrate"),
        (("--scheme", "int4_g32", "--seq-len", "16"), "--calibrate"),
        (("--scheme", "int4_g32", "--calibrate", text, "--device", "npu"), "cpu or cuda … npu"),
    ):
        result = run(source, tmp_path / "out", *options)
        assert result.exit_code == 2 and has_line_naming(plain(result.stderr), named)
    result = run(source, tmp_path / "out", "--scheme", "int4_g128", "--calibrate", text, "--seq-len", 64)
    assert result.exit_code == 1 and has_line_naming(result.stderr, 64, 256)  # too little text
    assert result.stderr.strip().count("\n") == 0


def test_calibration_that_does_not_fit_the_model(source, tmp_path):
    text = cases.write_texts(tmp_path / "t.jsonl", 50, seed=1)
    for change, length, named in (
        ({}, 129, ["--seq-len 129", 128]),
        ({"vocab_size": 8}, 64, ["token", "8 tokens"]),
    ):
        config = convert_cases.CONFIG | {"max_position_embeddings": 128, "vocab_size": len(cases.VOCABULARY)} | change
        (source / "config.json").write_text(json.dumps(config))
        with pytest.raises(BadCheckpoint, match=line_naming(*named)):
            calibrate(Request(source, tmp_path / "out", "int4_g128"), Calibration(text, 1, length))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (source / name).unlink()
    with pytest.raises(BadCheckpoint, match="tokenizer"):
        calibrate(Request(source, tmp_path / "out", "int4_g128"), Calibration(text, 1, 64))
    assert {path.name for path in tmp_path.iterdir()} == {"in", "t.jsonl"}


@pytest.mark.skipif(find_spec("llmcompressor") is not None, reason="llm-compressor is installed")
def test_without_llm_compressor_the_command_says_how_to_install_it(source, tmp_path):
    text = cases.write_texts(tmp_path / "t.jsonl", 50, seed=1)
    options = ("--calibrate", text, "--samples", 2, "--seq-len", 64)
    result = run(source, tmp_path / "out", "--scheme", "int4_g128", *options)
    root = Path(__file__).parents[2]
    assert result.exit_code == 1
    assert f"python3 -m venv calibrate && calibrate/bin/pip install '{root}[calibrate]'" in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"in", "t.jsonl"}
