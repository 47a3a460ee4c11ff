"""`--scheme bf16`: what was quantized, by us or by others, is BF16(code * scale) again; nothing else has changed."""

import json

import convert_cases as cases
import pytest
import torch
from checkpoint_pairs import Pair, as_modelslim, edit, make_pair

from ascend_quant import oracle
from ascend_quant.convert import pieces
from ascend_quant.profile.checkpoints import BadCheckpoint
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


@pytest.mark.parametrize("scheme, format", WRITTEN_TOO)
def test_every_format_is_undone(scheme, format, tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "ELEMENTS", 1000)  # some rows at a time
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


def test_codes_of_minus_8_come_back(tmp_path):
    """As llm-compressor's GPTQ writes int4: codes -8 ... 7, packed eight to a word, the lowest bits first."""
    source = cases.write(tmp_path / "in", cases.state(), shards=1)
    cases.run(source, tmp_path / "quantized", "int4_g128")
    name, codes_NK = "model.layers.0.mlp.up_proj.weight", torch.arange(cases.MIDDLE * cases.HIDDEN) % 16 - 8
    codes_NK = codes_NK.view(cases.MIDDLE, cases.HIDDEN)
    words = sum((codes_NK[:, i::8] + 8) << 4 * i for i in range(8))
    words = torch.where(words >= 2**31, words - 2**32, words).int()
    edit(tmp_path / "quantized", lambda state: state.update({f"{name}_packed": words}))
    cases.run(tmp_path / "quantized", tmp_path / "out", "bf16")
    scale_NK = cases.read(tmp_path / "quantized")[f"{name}_scale"].double().repeat_interleave(128, 1)
    assert torch.equal(cases.read(tmp_path / "out")[name], (codes_NK * scale_NK).to(torch.bfloat16))


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
    with pytest.raises(BadCheckpoint, match=r"q_proj\.quant_bias: .* static"):
        cases.run(slim.w8a8, tmp_path / "out", "bf16")


@pytest.mark.parametrize("key", ["torch_dtype", "dtype"])
@pytest.mark.parametrize("part", [None, "text_config"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_model_in_another_dtype_becomes_bf16_as_a_whole(dtype, part, key, tmp_path):
    """Its own dtype and float16 do; float32 in a model of float16 is meant to be, as is what is no float."""
    tensors = cases.state(dtype=dtype)
    named = {key: str(dtype).removeprefix("torch.")}
    config = {"model_type": "qwen3_moe", **({part: named | {"hidden_size": 256}} if part else named)}
    cases.run(cases.write(tmp_path / "in", tensors, config=config), tmp_path / "int8", "int8")
    cases.run(tmp_path / "int8", tmp_path / "out", "bf16")
    rounded = (torch.float16, dtype)
    wanted = {name: one.bfloat16() if one.dtype in rounded else one for name, one in undone(tensors, "int8").items()}
    cases.assert_same(cases.read(tmp_path / "out"), wanted)
    found = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (found[part] if part else found)[key] == "bfloat16"
    assert dtype == torch.float32 or wanted["model.number"].dtype == torch.float32


def test_a_float16_model_that_is_not_quantized_becomes_bf16(tmp_path):
    tensors = cases.state(dtype=torch.float16)
    cases.run(cases.write(tmp_path / "in", tensors), tmp_path / "out", "bf16")
    wanted = {name: one.bfloat16() if one.dtype == torch.float16 else one for name, one in tensors.items()}
    cases.assert_same(cases.read(tmp_path / "out"), wanted)


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("inside", [False, True])
def test_modelopts_fp8_is_undone(inside, shape, tmp_path):
    """What it says lies in a file of its own, or in config.json as well; scales of inputs and of the cache go."""
    name, said = "model.layers.0.mlp.up_proj", {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    codes, scale = torch.randn(64, 128).to(torch.float8_e4m3fn), torch.tensor(0.37)
    kept = {"model.norm.weight": torch.ones(128, dtype=torch.bfloat16)}
    held = {
        f"{name}.weight": codes,
        f"{name}.weight_scale": scale.reshape(shape),
        f"{name}.input_scale": torch.ones(()),
    }
    held |= {"model.layers.0.self_attn.k_proj.k_scale": torch.ones(())} | kept
    section = {"quantization_config": {"quant_method": "modelopt"} | said} if inside else {}
    source = cases.write(tmp_path / "in", held, 1, cases.CONFIG | section)
    (source / "hf_quant_config.json").write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": said}))
    cases.run(source, tmp_path / "out", "bf16")
    wanted = {f"{name}.weight": (codes.float() * 0.37).bfloat16()} | kept
    cases.assert_same(cases.read(tmp_path / "out"), wanted)
    assert not (tmp_path / "out" / "hf_quant_config.json").exists()
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == cases.CONFIG
    cases.run(tmp_path / "out", tmp_path / "int8", "int8")


def test_biases_of_norms_are_the_models_own_or_zeros_of_modelslims(pair, tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = AutoConfig.for_model("starcoder2", **sizes, num_key_value_heads=2, vocab_size=64, bos_token_id=0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # its norms have biases
    with torch.no_grad():
        model.model.layers[0].input_layernorm.bias.fill_(0.5)
    model.save_pretrained(tmp_path / "own")
    zeros = {f"model.layers.0.{norm}_layernorm.bias": torch.zeros(64) for norm in ("input", "post_attention")}
    slim = as_modelslim(pair, tmp_path / "other-slim").w8a8
    cases.run(slim, tmp_path / "without", "bf16")
    edit(slim, lambda state: state.update(zeros))
    cases.run(tmp_path / "own", tmp_path / "own-slim", "int8", format="modelslim")
    for name, wanted in (("own", "own"), ("other", "without")):
        cases.run(tmp_path / f"{name}-slim", tmp_path / f"{name}-out", "bf16")
        assert cases.read(tmp_path / f"{name}-out").keys() == cases.read(tmp_path / wanted).keys()
    assert bool((cases.read(tmp_path / "own-out")["model.layers.0.input_layernorm.bias"] == 0.5).all())


def test_scales_in_another_shard_are_found(tmp_path):
    name = "model.layers.0.mlp.up_proj.weight"
    one = cases.write(tmp_path / "one", {name: torch.randn(256, 256).to(torch.bfloat16)}, 1)
    cases.run(one, folder := tmp_path / "quantized", "fp8_block")
    held = cases.read(folder)
    split = cases.write(tmp_path / "in", held, 2, json.loads((folder / "config.json").read_text()))
    cases.run(split, tmp_path / "out", "bf16")
    value = oracle.dequantize(held[name], held[f"{name}_scale_inv"])
    cases.assert_same(cases.read(tmp_path / "out"), {name: value.to(torch.bfloat16)})
