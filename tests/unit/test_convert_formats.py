"""What is written: names, dtypes, shapes and bytes of each format, what config.json says, what is carried over."""

import hashlib
import json
import os

import convert_cases as cases
import pytest
import torch
from safetensors import safe_open

import ascend_quant
from ascend_quant import oracle
from ascend_quant.convert import ConvertError
from ascend_quant.convert.layers import why_unquantized
from ascend_quant.profile.checkpoints import Checkpoint
from ascend_quant.profile.w8a8 import read_w8a8

COMPRESSED = [(scheme, experts) for scheme in ("int8", "fp8", "int4_g128", "int4_g32") for experts in (True, False)]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Read, not edited."""
    return cases.write(tmp_path_factory.mktemp("source") / "in", cases.state())


@pytest.mark.parametrize("scheme, format", cases.WRITTEN)
@pytest.mark.parametrize("shards", [1, 3])
def test_the_bytes_are_the_oracles(scheme, format, shards, tmp_path):
    source = cases.write(tmp_path / "in", cases.state(), shards)
    summary = cases.run(source, tmp_path / "out", scheme, format=format)
    cases.assert_same(cases.read(tmp_path / "out"), cases.expected(cases.state(), scheme, format))
    assert [path.name for path in sorted((tmp_path / "out").glob("*.safetensors"))] == [
        path.name for path in sorted(source.glob("*.safetensors"))
    ]
    assert summary.weights["quantized"] == sum(map(cases.is_quantized, cases.state()))


@pytest.mark.parametrize("scheme, format", cases.WRITTEN)
def test_torchs_default_dtype_does_not_matter(scheme, format, source, tmp_path):
    """vLLM sets it, and leaves it so where it fails."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        cases.run(source, tmp_path / "out", scheme, format=format)
    finally:
        torch.set_default_dtype(torch.float32)
    cases.assert_same(cases.read(tmp_path / "out"), cases.expected(cases.state(), scheme, format))


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


def test_a_stack_the_other_way_round_is_refused(tmp_path):
    tensors = cases.stacked(cases.state())
    turned = {n: t.transpose(1, 2).contiguous() if ".experts." in n else t for n, t in tensors.items()}
    with pytest.raises(ConvertError, match=r"gate_up_proj .* are \(3, 256, 256\) and \(3, 128, 256\); read are"):
        cases.run(cases.write(tmp_path / "in", turned), tmp_path / "out", "int8")


@pytest.mark.parametrize("other, said", [(None, "there is no"), (torch.ones(3, 4), r"and \(3, 4\); read are")])
def test_a_stack_needs_its_counterpart(other, said, tmp_path):
    tensors = cases.stacked(cases.state())
    down = "model.layers.1.mlp.experts.down_proj"
    tensors = {**tensors, down: other} if other is not None else {n: t for n, t in tensors.items() if n != down}
    with pytest.raises(ConvertError, match=said):
        cases.run(cases.write(tmp_path / "in", tensors), tmp_path / "out", "int8")


def test_the_index_names_every_tensor_and_its_file(source, tmp_path):
    cases.run(source, tmp_path / "out", "int4_g32")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    held = {}
    for path in (tmp_path / "out").glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            held |= dict.fromkeys(file.keys(), path.name)
    assert index["weight_map"] == held
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in cases.read(tmp_path / "out").values())


def blockwise(w_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of 128x128 blocks, one block at a time, in float32."""
    blocks = [
        [w_NK[i : i + 128, j : j + 128].float() for j in range(0, w_NK.shape[1], 128)] for i in range(0, len(w_NK), 128)
    ]
    scale = torch.tensor([[block.abs().max() / torch.tensor(448.0) for block in row] for row in blocks])
    codes = [
        torch.cat([block / s if s else torch.zeros_like(block) for block, s in zip(row, scales, strict=True)], 1)
        for row, scales in zip(blocks, scale, strict=True)
    ]
    return torch.cat(codes).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def test_blocks_equal_a_direct_computation_also_where_128_divides_nothing(tmp_path):
    w_NK = torch.randn(300, 200).to(torch.bfloat16)
    w_NK[:128, 128:] = 0
    name = "model.layers.0.mlp.up_proj.weight"
    cases.run(cases.write(tmp_path / "in", {name: w_NK}, 1), tmp_path / "out", "fp8_block:128x128")
    codes, scale = blockwise(w_NK)
    cases.assert_same(cases.read(tmp_path / "out"), {name: codes, f"{name}_scale_inv": scale})
    assert scale[0, 1] == 0 and not codes[:128, 128:].float().any()


@pytest.mark.parametrize("name, scheme", [("channel", "fp8"), ("tensor", "fp8_tensor")])
def test_channels_and_tensors_equal_a_direct_computation(name, scheme, tmp_path):
    w_NK = torch.randn(300, 200).to(torch.bfloat16)
    w_NK[7] = 0
    layer = "model.layers.0.mlp.up_proj.weight"
    cases.run(cases.write(tmp_path / "in", {layer: w_NK}, 1), tmp_path / "out", scheme)
    found, rows = cases.read(tmp_path / "out"), w_NK.float()
    absmax = rows.abs().amax(1, keepdim=True) if name == "channel" else rows.abs().max().reshape(1)
    scale = absmax / torch.full_like(absmax, 448)
    codes = torch.where(scale == 0, 0, rows / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    cases.assert_same(found, {layer: codes, f"{layer}_scale": scale})


@pytest.mark.parametrize("scheme, experts", [*COMPRESSED, ("fp8_tensor", False)])
def test_compressed_tensors_decompresses_to_our_values(scheme, experts, tmp_path):
    """Its dtype is that of the scale: float32, or BF16 for int4."""
    compressors = pytest.importorskip("compressed_tensors.compressors.base")
    from compressed_tensors.quantization import QuantizationConfig

    tensors = cases.state(experts=experts)
    cases.run(cases.write(tmp_path / "in", tensors), tmp_path / "out", scheme)
    section = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    config = QuantizationConfig.model_validate(section)
    group = config.config_groups["group_0"]
    compressor = compressors.BaseCompressor.get_value_from_registry(group.format)
    assert compressor.can_compress(torch.nn.Linear, group)
    assert group.weights.group_size == (ascend_quant.schemes.SCHEMES[scheme].group or None)
    tokens = group.input_activations
    assert tokens is None if scheme.startswith("int4") else tokens.dynamic is True and tokens.strategy == "token"
    found = cases.read(tmp_path / "out")
    for name in filter(cases.is_quantized, tensors):
        layer = name.removesuffix("weight")
        given = {key.removeprefix(layer): t for key, t in found.items() if key.startswith(layer)}
        given.pop("bias", None)
        assert given.keys() == {*compressor.compression_param_names(group)}
        value = compressor.decompress(given, group)["weight"]
        codes, scale = oracle.quantize(tensors[name], ascend_quant.schemes.SCHEMES[scheme])
        assert value.dtype == scale.dtype
        assert torch.equal(value, oracle.dequantize(codes, scale).to(scale.dtype)), name


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


@pytest.mark.parametrize(
    "layer, reason",
    [
        ("model.layers.3.mlp.down_proj", None),
        ("model.layers.3.mlp.gate_proj", None),
        ("model.layers.3.mlp.experts.7.up_proj", None),
        ("model.layers.3.self_attn.kv_b_proj", None),
        ("model.layers.3.self_attn.indexer.wq_b", None),
        ("language_model.model.layers.0.self_attn.q_proj", None),
        ("lm_head", "head"),
        ("model.layers.61.shared_head.head", "head"),
        ("score", "head"),
        ("model.embed_tokens", "embedding"),
        ("transformer.wte", "embedding"),
        ("model.layers.3.mlp.gate", "router"),
        ("model.layers.3.block_sparse_moe.gate", "router"),
        ("model.layers.3.mlp.shared_expert_gate", "router"),
        ("model.layers.3.feed_forward.router", "router"),
        ("visual.blocks.0.attn.qkv", "tower"),
        ("model.vision_tower.encoder.layers.0.fc1", "tower"),
        ("multi_modal_projector.linear_1", "tower"),
        ("model.layers.61.eh_proj", "kept by vLLM"),
        ("model.layers.3.self_attn.indexer.weights_proj", "kept by vLLM"),
    ],
)
def test_what_is_not_quantized_by_default(layer, reason):
    assert why_unquantized(layer) == reason


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


def test_the_manifest_has_every_file_and_is_the_same_in_every_run(source, tmp_path):
    for out, workers in (("a", 1), ("b", 3)):
        cases.run(source, tmp_path / out, "int4_g32", workers=workers)
    text = (tmp_path / "a" / "ascend_quant_manifest.json").read_text()
    assert text == (tmp_path / "b" / "ascend_quant_manifest.json").read_text()
    manifest = json.loads(text)
    assert manifest.keys() == {"version", "scheme", "format", "ignore", "source", "files"}  # no times
    assert manifest["scheme"] == "int4_g32" and manifest["format"] == "compressed-tensors"
    assert manifest["version"] == ascend_quant.__version__
    assert manifest["source"] == {path.name: {"bytes": os.path.getsize(path)} for path in source.glob("*.safetensors")}
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    del files["ascend_quant_manifest.json"]
    assert manifest["files"] == {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)} for name, content in files.items()
    }
