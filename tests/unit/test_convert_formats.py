"""What is written: names, dtypes, shapes and bytes of each format, what config.json says, what is carried over."""

import json
import os

import checkpoint_pairs
import convert_cases as cases
import pytest
import torch
from safetensors.torch import load_file

import ascend_quant
from ascend_quant import oracle
from ascend_quant.convert.plan import why_unquantized
from ascend_quant.profile.checkpoints import BadCheckpoint, Checkpoint
from ascend_quant.profile.w8a8 import read_w8a8
from ascend_quant.schemes import SCHEMES


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Read, not edited."""
    return cases.write(tmp_path_factory.mktemp("source") / "in", cases.state())


@pytest.mark.parametrize("scheme, format", cases.WRITTEN)
@pytest.mark.parametrize("shards", [1, 3])
def test_the_bytes_are_the_oracles_and_the_index_names_every_tensor(scheme, format, shards, tmp_path):
    """Whatever torch's default dtype is: vLLM sets it, and leaves it so where it fails."""
    source, out = cases.write(tmp_path / "in", cases.state(), shards), tmp_path / "out"
    torch.set_default_dtype(torch.bfloat16 if shards == 1 else torch.float32)
    try:
        summary = cases.run(source, out, scheme, format=format)
    finally:
        torch.set_default_dtype(torch.float32)
    cases.assert_same(cases.read(out), cases.expected(cases.state(), scheme, format))
    held = {path.name: [*load_file(path)] for path in out.glob("*.safetensors")}
    assert held.keys() == {path.name for path in source.glob("*.safetensors")}
    assert summary.weights["quantized"] == sum(map(cases.is_quantized, cases.state()))
    if shards > 1:
        index = json.loads((out / "model.safetensors.index.json").read_text())
        assert index["weight_map"] == {name: file for file, names in held.items() for name in names}
        assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in cases.read(out).values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_dtypes_are_rounded_to_bf16_first_and_kept_where_nothing_is_quantized(dtype, tmp_path):
    tensors = cases.state(dtype=dtype)
    cases.run(cases.write(tmp_path / "in", tensors), tmp_path / "out", "fp8")
    cases.assert_same(cases.read(tmp_path / "out"), cases.expected(tensors, "fp8", "compressed-tensors"))


def test_a_stack_of_experts_is_written_expert_by_expert(source, tmp_path):
    stacked = cases.write(tmp_path / "in", cases.stacked(cases.state()), shards=2)
    for scheme in ("int8", "fp8_block"):
        cases.run(source, tmp_path / f"{scheme}-one", scheme)
        cases.run(stacked, tmp_path / f"{scheme}-stack", scheme)
        cases.assert_same(cases.read(tmp_path / f"{scheme}-stack"), cases.read(tmp_path / f"{scheme}-one"))


@pytest.mark.parametrize("harm", ["turned", "alone", "flat"])
def test_a_stack_that_is_not_like_its_counterpart_is_refused(harm, tmp_path):
    tensors = cases.stacked(cases.state())
    up, down = (f"model.layers.1.mlp.experts.{leaf}" for leaf in ("gate_up_proj", "down_proj"))
    if harm == "turned":
        tensors |= {name: tensors[name].transpose(1, 2).contiguous() for name in (up, down)}
    elif harm == "flat":
        tensors[down] = torch.ones(3, 4)
    else:
        del tensors[down]
    with pytest.raises(BadCheckpoint, match=r"experts\.(gate_up|down)_proj"):
        cases.run(cases.write(tmp_path / "in", tensors), tmp_path / "out", "int8")


@pytest.mark.parametrize("scheme", ["int8", "fp8", "fp8_tensor", "int4_g128", "int4_g32"])
def test_the_libraries_decompress_a_whole_model_to_our_values(scheme, tmp_path):
    """transformers and compressed-tensors; in float32, which keeps the scales as they are."""
    transformers = pytest.importorskip("transformers")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    source = checkpoint_pairs.make_bf16("qwen2", tmp_path / "in", hidden_size=256, intermediate_size=256)
    cases.run(source, tmp_path / "out", scheme)
    section = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    tokens = quantization.QuantizationConfig.model_validate(section).config_groups["group_0"].input_activations
    assert tokens is None if scheme.startswith("int4") else tokens.dynamic is True and tokens.strategy == "token"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out",
        quantization_config=transformers.CompressedTensorsConfig(run_compressed=False),
        dtype=torch.float32,
    )
    found = model.state_dict()
    for name, tensor in cases.read(source).items():
        wanted = tensor.float()
        if cases.is_quantized(name):
            wanted = oracle.dequantize(*oracle.quantize(tensor, SCHEMES[scheme]))
        assert torch.equal(found[name], wanted), name


def test_what_config_json_says_for_vllm(source, tmp_path):
    cases.run(source, tmp_path / "int8", "int8", ignore=("re:.*o_proj", "model.layers.0.mlp.gate_up_proj"))
    config = json.loads((tmp_path / "int8" / "config.json").read_text())
    assert {key: config[key] for key in cases.CONFIG} == cases.CONFIG
    ignored = config["quantization_config"]["ignore"]
    o_proj = [f"model.layers.{layer}.self_attn.o_proj" for layer in range(2)]
    gate_up = [f"model.layers.0.mlp.{name}_proj" for name in ("gate", "up", "gate_up")]
    assert {*ignored} == {"re:.*o_proj", *gate_up, *o_proj, *cases.LEFT}
    cases.run(source, tmp_path / "block", "fp8_block", ignore=("re:.*o_proj",))
    section = json.loads((tmp_path / "block" / "config.json").read_text())["quantization_config"]
    assert section["weight_block_size"] == [128, 128] and section["activation_scheme"] == "dynamic"
    assert {*section["modules_to_not_convert"]} == {*o_proj, *cases.LEFT}  # names alone: vLLM knows no patterns there
    found = cases.read(tmp_path / "block")
    assert all(found[f"{layer}.weight"].dtype == torch.bfloat16 for layer in o_proj)


def test_modelslim_describes_every_tensor_and_is_read_back(source, tmp_path):
    cases.run(source, tmp_path / "out", "int8", format="modelslim")
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    described = json.loads((tmp_path / "out" / "quant_model_description.json").read_text())
    found = cases.read(tmp_path / "out")
    assert described.pop("model_quant_type") == "W8A8_DYNAMIC" and described.pop("version")
    assert described == {name: "W8A8_DYNAMIC" if "_proj.weight" in name else "FLOAT" for name in found}
    read = read_w8a8(Checkpoint(tmp_path / "out"))
    assert read.format == "ModelSlim" and read.quantized == {*filter(cases.is_quantized, cases.state())}
    for name in read.quantized:
        codes, scale = read.codes_and_scale(name)
        wanted_codes, wanted_scale = oracle.quantize_weight(cases.state()[name])
        assert torch.equal(codes, wanted_codes) and torch.equal(scale, wanted_scale)


def test_what_is_not_quantized_by_default():
    for layer, reason in (
        ("model.layers.3.mlp.down_proj", None),
        ("model.layers.3.mlp.experts.7.up_proj", None),
        ("model.layers.3.self_attn.indexer.wq_b", None),
        ("lm_head", "head"),
        ("model.embed_tokens", "embedding"),
        ("model.layers.3.mlp.shared_expert_gate", "router"),
        ("model.layers.3.feed_forward.router", "router"),
        ("model.vision_tower.encoder.layers.0.fc1", "tower"),
        ("model.layers.61.eh_proj", "kept by vLLM"),
        ("model.layers.3.self_attn.indexer.weights_proj", "kept by vLLM"),
    ):
        assert why_unquantized(layer) == reason, layer


def test_other_files_are_carried_over_and_other_weights_are_not(tmp_path):
    source = cases.write(tmp_path / "in", cases.state())
    kept = {
        "tokenizer.json": "{}",
        "tokenizer.model": "\x00",
        "chat_template.jinja": "{{ x }}",
        "generation_config.json": "{}",
        "modeling_own.py": "x = 1",
        "assets/picture.txt": "a",
    }
    left = {".git/HEAD": "x", "pytorch_model.bin": "x", "pytorch_model.bin.index.json": "x", "original/c.00.pth": "x"}
    for name, text in (kept | left).items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text)
    (source / "linked.json").symlink_to(source / "tokenizer.json")  # as in the hub's cache
    cases.run(source, tmp_path / "out", "int8")
    out = tmp_path / "out"
    found = {str(path.relative_to(out)): path for path in out.rglob("*") if path.is_file()}
    written = {"config.json", "model.safetensors.index.json", "ascend_quant_manifest.json", "linked.json"}
    assert found.keys() == {*kept, *written, *(path.name for path in source.glob("*.safetensors"))}
    assert all(found[name].read_text() == text for name, text in kept.items())
    assert not (out / "linked.json").is_symlink()


def test_files_are_the_same_in_every_run_and_the_manifest_says_what_was_asked(source, tmp_path):
    for out, workers in (("a", 1), ("b", 3)):
        cases.run(source, tmp_path / out, "int4_g32", workers=workers)
    one, other = ({path.name: path.read_bytes() for path in (tmp_path / out).iterdir()} for out in ("a", "b"))
    assert one == other
    manifest = json.loads(one["ascend_quant_manifest.json"])
    assert manifest.keys() == {"version", "scheme", "format", "ignore", "source"}  # no times
    assert manifest["scheme"] == "int4_g32" and manifest["format"] == "compressed-tensors"
    assert manifest["version"] == ascend_quant.__version__
    assert manifest["source"] == {path.name: {"bytes": os.path.getsize(path)} for path in source.glob("*.safetensors")}
