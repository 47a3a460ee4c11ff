"""`--scheme bf16`: what was quantized, by us or by others, is BF16(code * scale) again; nothing else has changed."""

import json
import shutil

import checkpoint_pairs
import convert_cases as cases
import pytest
import torch
from checkpoint_pairs import Pair, as_modelslim, make_pair
from naming import line_naming

from ascend_quant import oracle
from ascend_quant.convert import ConvertError, pieces
from ascend_quant.profile.rules import ProfileError
from ascend_quant.schemes import SCHEMES

WRITTEN_TOO = [*cases.WRITTEN, ("fp8_tensor", "compressed-tensors")]


def undone(tensors: dict[str, torch.Tensor], scheme: str) -> dict[str, torch.Tensor]:
    """What a quantization leaves of a state dict."""
    return {
        name: oracle.dequantize(*oracle.quantize(tensor, SCHEMES[scheme])).to(torch.bfloat16)
        if cases.is_quantized(name)
        else tensor
        for name, tensor in tensors.items()
    }


@pytest.mark.parametrize("elements", [1000, 1 << 20], ids=["some rows", "all rows"])
@pytest.mark.parametrize("scheme, format", WRITTEN_TOO)
def test_every_format_is_undone(scheme, format, elements, tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "ELEMENTS", elements)
    tensors = cases.state(experts=(scheme, format) != WRITTEN_TOO[-1])
    source = cases.write(tmp_path / "in", tensors)
    cases.run(source, tmp_path / "quantized", scheme, format=format)
    summary = cases.run(tmp_path / "quantized", tmp_path / "out", "bf16")
    cases.assert_same(cases.read(tmp_path / "out"), undone(tensors, scheme))
    assert summary.weights == {"dequantized": sum(map(cases.is_quantized, tensors))}
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == cases.CONFIG
    index = "model.safetensors.index.json"
    places = [json.loads((folder / index).read_text())["weight_map"] for folder in (source, tmp_path / "out")]
    assert places[0] == places[1]
    assert not list((tmp_path / "out").glob("quant_model_description*"))


@pytest.mark.parametrize("scheme", ["int8", "fp8", "fp8_tensor", "fp8_block"])
def test_quantizing_again_gives_the_same_files(scheme, tmp_path):
    """BF16 keeps eight bits of a code times its scale: the largest of each row, and every code, come back."""
    cases.run(cases.write(tmp_path / "in", cases.state()), tmp_path / "once", scheme)
    cases.run(tmp_path / "once", tmp_path / "undone", "bf16")
    cases.run(tmp_path / "undone", tmp_path / "twice", scheme)
    cases.assert_same(cases.read(tmp_path / "twice"), cases.read(tmp_path / "once"))


def test_stacked_experts_come_back_one_by_one(tmp_path):
    cases.run(cases.write(tmp_path / "in", cases.stacked(cases.state())), tmp_path / "quantized", "int8")
    cases.run(tmp_path / "quantized", tmp_path / "out", "bf16")
    cases.assert_same(cases.read(tmp_path / "out"), undone(cases.state(), "int8"))


@pytest.fixture
def pair(tmp_path) -> Pair:
    """Made by no code of ours: scales of absmax / 127.5, codes from -128 on."""
    return make_pair("qwen2", tmp_path)


@pytest.mark.parametrize("kind", ["compressed-tensors", "ModelSlim"])
def test_checkpoints_of_other_tools_are_undone(kind, pair, tmp_path):
    held = cases.read(pair.w8a8)
    source = pair.w8a8 if kind == "compressed-tensors" else as_modelslim(pair, tmp_path / "slim").w8a8
    cases.run(source, tmp_path / "out", "bf16")
    wanted = {}
    for name, tensor in held.items():
        if f"{name}_scale" in held:
            wanted[name] = (tensor.float() * held[f"{name}_scale"].float()).to(torch.bfloat16)
        elif not name.endswith("_scale"):
            wanted[name] = tensor
    cases.assert_same(cases.read(tmp_path / "out"), wanted)


def test_a_static_modelslim_layer_keeps_its_bias_elsewhere_and_is_refused(pair, tmp_path):
    slim = as_modelslim(pair, tmp_path / "slim", static=("q_proj",))
    with pytest.raises(ConvertError, match=r"q_proj\.quant_bias: .* static"):
        cases.run(slim.w8a8, tmp_path / "out", "bf16")


def quantized(tmp_path, scheme: str):
    """A folder to be spoilt: one layer."""
    name = "model.layers.0.mlp.up_proj.weight"
    source = cases.write(tmp_path / "in", {name: torch.randn(256, 256).to(torch.bfloat16)}, 1)
    cases.run(source, tmp_path / "quantized", scheme)
    return tmp_path / "quantized", name


@pytest.mark.parametrize(
    "scheme, leaf, value, said",
    [
        ("int4_g32", "_zero_point", torch.zeros(1), "symmetric"),
        ("int4_g32", "_g_idx", torch.zeros(256), "symmetric"),
        ("int4_g32", "_shape", torch.tensor([256, 128]), r"no int4 weight of shape \(256, 128\)"),
        ("int4_g32", "_scale", torch.full((256, 8), torch.nan), "NaN"),
        ("int8", "_zero_point", torch.ones(256, 1, dtype=torch.int8), "asymmetric"),
        ("fp8", "_scale", torch.ones(3), r"scales \(3,\)"),
        ("fp8_block", "_scale_inv", torch.ones(4, 4), r"scales \(4, 4\)"),
    ],
)
def test_what_cannot_be_undone_is_refused_by_name(scheme, leaf, value, said, tmp_path):
    folder, name = quantized(tmp_path, scheme)
    checkpoint_pairs.edit(folder, lambda state: state.update({f"{name}{leaf}": value}))
    with pytest.raises((ConvertError, ProfileError), match=said) as error:
        cases.run(folder, tmp_path / "out", "bf16")
    assert name in str(error.value)
    assert not (tmp_path / "out").exists()


def test_other_methods_and_plain_checkpoints_are_refused(tmp_path):
    source = cases.write(tmp_path / "in", cases.state())
    with pytest.raises(ConvertError, match="not quantized"):
        cases.run(source, tmp_path / "out", "bf16")
    config = cases.CONFIG | {"quantization_config": {"quant_method": "gptq"}}
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConvertError, match="'gptq'; compressed-tensors"):
        cases.run(source, tmp_path / "out", "bf16")
    config["quantization_config"]["quant_method"] = "fp8"
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConvertError, match=line_naming("int8, fp8 or int4")):
        cases.run(source, tmp_path / "out", "bf16")


def test_scales_in_another_shard_are_found(tmp_path):
    folder, name = quantized(tmp_path, "fp8_block")
    held = cases.read(folder)
    shutil.rmtree(tmp_path / "in")
    split = cases.write(tmp_path / "in", held, 2, json.loads((folder / "config.json").read_text()))
    cases.run(split, tmp_path / "out", "bf16")
    value = oracle.dequantize(held[name], held[f"{name}_scale_inv"])
    cases.assert_same(cases.read(tmp_path / "out"), {name: value.to(torch.bfloat16)})
