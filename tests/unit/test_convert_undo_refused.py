"""`--scheme bf16` of checkpoints that are not what they say: refused by name, headers before anything is written."""

import json

import checkpoint_pairs
import convert_cases as cases
import pytest
import torch

NAME = "model.layers.0.mlp.up_proj.weight"
LAYER = NAME.removesuffix(".weight")
NORM = "model.norm.weight"
SHAPE = (256, 384)
FP8 = torch.float8_e4m3fn


def quantized(tmp_path, scheme: str):
    """A folder to be spoilt: two layers, so that something is left when one has gone, and a norm."""
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(SHAPE, generator=generator) for name in (NAME, NAME.replace("up", "gate"))}
    source = cases.write(
        tmp_path / "in", {k: v.to(torch.bfloat16) for k, v in (tensors | {NORM: torch.ones(8)}).items()}, 1
    )
    cases.run(source, tmp_path / "quantized", scheme)
    return tmp_path / "quantized"


def refused(folder, tmp_path, before: bool = True) -> str:
    """What is said; `before`: nothing has been written by then."""
    with pytest.raises(cases.REFUSED) as error:
        cases.run(folder, tmp_path / "out", "bf16")
    assert not (tmp_path / "out").exists()
    assert before is not (tmp_path / "out.partial").exists()
    assert "\n" not in str(error.value)
    return str(error.value)


def change_weights(folder, change) -> None:
    """Edit what config.json says about weights."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config["quantization_config"])
    path.write_text(json.dumps(config))


def weights_of(section: dict) -> dict:
    return section["config_groups"]["group_0"]["weights"]


@pytest.mark.parametrize(
    "scheme, change, named",
    [
        ("int8", {f"{NAME}_scale": None}, NAME),
        ("int8", {NAME: None}, f"{NAME}_scale"),
        ("int8", {f"{NAME}_scale": torch.ones(256, 1, dtype=torch.int32)}, NAME),
        ("int8", {f"{NAME}_scale": torch.ones(1, 256)}, NAME),
        ("int8", {"model.layers.0.mlp.experts.down_proj": torch.ones(2, 8, 8, dtype=torch.int8)}, "experts.down_proj"),
        ("fp8", {NAME: None}, f"{NAME}_scale"),
        ("fp8", {f"{NAME}_scale": torch.ones(3)}, NAME),
        ("fp8", {f"{NAME}_scale_inv": torch.ones(2, 3)}, NAME),
        ("fp8", {NORM: torch.ones(8).to(FP8)}, NORM),
        ("fp8", {NAME: torch.ones(SHAPE).to(torch.float8_e5m2)}, NAME),
        ("fp8_block", {f"{NAME}_scale_inv": torch.ones(4, 4)}, NAME),
        ("int4_g32", {f"{NAME}_packed": None}, f"{NAME}_s"),
        ("int4_g32", {f"{NAME}_shape": None}, f"{NAME}_shape"),
        ("int4_g32", {NAME: torch.ones(SHAPE)}, NAME),
        ("int4_g32", {f"{NAME}_shape": torch.ones(2)}, f"{NAME}_shape"),
        ("int4_g32", {f"{NAME}_shape": torch.tensor([2**40, 384])}, NAME),
        ("int4_g32", {f"{NAME}_scale": torch.ones(256, 6)}, NAME),
        ("int4_g32", {f"{NAME}_zero_point": torch.zeros(1)}, f"{NAME}_zero_point"),
        ("int4_g32", {f"{NAME}_g_idx": torch.zeros(256)}, f"{NAME}_g_idx"),
    ],
)
def test_tensors_that_do_not_go_together_are_refused_by_name(scheme, change, named, tmp_path):
    def edit(state: dict) -> None:
        for name, tensor in change.items():
            state.pop(name, None)
            state.update({} if tensor is None else {name: tensor})

    folder = quantized(tmp_path, scheme)
    checkpoint_pairs.edit(folder, edit)
    assert named in refused(folder, tmp_path)


@pytest.mark.parametrize(
    "scheme, leaf, value",
    [
        ("int8", "_scale", -1.0),
        ("fp8", "_scale", torch.nan),
        ("int4_g32", "_scale", 3e38),
        ("fp8", "", torch.nan),
        ("fp8_block", "", torch.nan),
    ],
)
def test_values_that_no_bf16_holds_are_refused_by_name(scheme, leaf, value, tmp_path):
    def edit(state: dict) -> None:
        changed = state[f"{NAME}{leaf}"].float()
        changed[3, 5 if not leaf else 0] = value
        state[f"{NAME}{leaf}"] = changed.to(state[f"{NAME}{leaf}"].dtype)

    folder = quantized(tmp_path, scheme)
    checkpoint_pairs.edit(folder, edit)
    assert NAME in refused(folder, tmp_path, before=False)


def test_float32_beyond_bf16_is_refused_by_name(tmp_path):
    state = {NAME: torch.ones(SHAPE), NORM: torch.full((8,), 3.4e38)}
    source = cases.write(tmp_path / "in", state, 1, cases.CONFIG | {"torch_dtype": "float32"})
    cases.run(source, tmp_path / "quantized", "int8")
    assert NORM in refused(tmp_path / "quantized", tmp_path, before=False)


@pytest.mark.parametrize("name", ["model.layers.0.input_layernorm.bias", "model.norm.bias"])
def test_a_shift_of_modelslims_is_refused_by_name(name, tmp_path):
    """The model has no such bias, and would be loaded without it."""
    pair = checkpoint_pairs.make_pair("qwen2", tmp_path)
    slim = checkpoint_pairs.as_modelslim(pair, tmp_path / "slim").w8a8
    shift = torch.zeros(64)
    shift[7] = 2.0**-20
    others = {"model.layers.1.input_layernorm.bias": torch.zeros(64)}
    checkpoint_pairs.edit(slim, lambda state: state.update(others | {name: shift}))
    assert name in refused(slim, tmp_path)
    config = json.loads((slim / "config.json").read_text())
    (slim / "config.json").write_text(json.dumps(config | {"architectures": ["NobodysForCausalLM"]}))
    assert "NobodysForCausalLM" in refused(slim, tmp_path)


def test_blocks_of_compressed_tensors_are_not_taken_for_rows(tmp_path):
    """256 rows and 2 x 128 blocks have as many scales; config.json says which they are."""
    codes = torch.randn(256, 128 * 128).to(FP8)
    scale = torch.rand(2, 128) + 0.5
    config = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    weights = {"type": "float", "num_bits": 8, "strategy": "block", "block_structure": [128, 128], "symmetric": True}
    config["config_groups"] = {"group_0": {"targets": ["Linear"], "weights": weights}}
    held = {NAME: codes, f"{NAME}_scale": scale}
    folder = cases.write(tmp_path / "in", held, 1, cases.CONFIG | {"quantization_config": config})
    cases.run(folder, tmp_path / "right", "bf16")
    wanted = codes.float().view(2, 128, 128, 128) * scale.view(2, 1, 128, 1)
    cases.assert_same(cases.read(tmp_path / "right"), {NAME: wanted.view(codes.shape).to(torch.bfloat16)})
    for change in ({"strategy": "channel"}, {"block_structure": [64, 256]}, {"block_structure": None}):
        change_weights(folder, lambda section, change=change: weights_of(section).update(weights | change))
        refused(folder, tmp_path)


@pytest.mark.parametrize(
    "scheme, change",
    [
        ("int4_g32", {"num_bits": 8}),
        ("int4_g32", {"symmetric": False}),
        ("int4_g32", {"group_size": 128}),
        ("int8", {"strategy": "tensor"}),
        ("fp8", {"strategy": ["channel"]}),
        ("fp8", {"type": "int"}),
    ],
)
def test_a_config_that_says_something_else_is_refused(scheme, change, tmp_path):
    folder = quantized(tmp_path, scheme)
    change_weights(folder, lambda section: weights_of(section).update(change))
    refused(folder, tmp_path)


def test_groups_and_blocks_that_are_none_are_refused(tmp_path):
    for scheme, key, value, named in (
        ("fp8", "config_groups", {"group_0": {}}, "config_groups"),
        ("fp8_block", "weight_block_size", [64, 64], "weight_scale_inv"),
    ):
        folder = quantized(tmp_path / scheme, scheme)
        change_weights(folder, lambda section, one={key: value}: section.update(one))
        assert named in refused(folder, tmp_path / scheme)


@pytest.mark.parametrize("key", ["transform_config", "sparsity_config"])
def test_weights_that_were_rotated_or_made_sparse_are_refused(key, tmp_path):
    folder = quantized(tmp_path, "int4_g32")
    change_weights(folder, lambda section: section.update({key: {"config_groups": {"u": {"type": "hadamard"}}}}))
    assert key in refused(folder, tmp_path)
    for at, nothing in enumerate(({}, None, {"config_groups": {}}, {"format": "dense", "global_sparsity": 0.1})):
        change_weights(folder, lambda section, nothing=nothing: section.update({key: nothing}))
        cases.run(folder, tmp_path / f"out{at}", "bf16")


def test_the_scales_of_a_quantized_cache_go_with_the_rest(tmp_path):
    folder = quantized(tmp_path, "int8")
    scales = {f"model.layers.0.self_attn.{one}_scale": torch.tensor(0.5) for one in "kv"}
    checkpoint_pairs.edit(folder, lambda state: state.update(scales | {f"{LAYER}.input_scale": torch.ones(1)}))
    cases.run(folder, tmp_path / "out", "bf16")
    assert cases.read(tmp_path / "out").keys() == cases.read(tmp_path / "in").keys()


def refused_both_ways(folder, tmp_path) -> str:
    """To undo it and to quantize it are refused for the same reason: neither sends the user to the other."""
    said = refused(folder, tmp_path)
    with pytest.raises(cases.REFUSED) as error:
        cases.run(folder, tmp_path / "out", "int8")
    assert str(error.value) == said
    return said


@pytest.mark.parametrize(
    "scheme, format, code",
    [
        ("int8", "compressed-tensors", f"{NAME} is I8"),
        ("int8", "modelslim", f"{NAME} is I8"),
        ("fp8", None, f"{NAME} is F8_E4M3"),
        ("fp8_block", None, f"{NAME} is F8_E4M3"),
        ("int4_g32", None, f"{NAME}_packed is I32"),
    ],
)
def test_codes_that_nothing_describes_any_more_are_named(scheme, format, code, tmp_path):
    source = cases.write(tmp_path / "in", {NAME: torch.ones(SHAPE).to(torch.bfloat16)}, 1)
    cases.run(source, folder := tmp_path / "quantized", scheme, format=format)
    (folder / "config.json").write_text(json.dumps(cases.CONFIG))
    (folder / "quant_model_description.json").unlink(missing_ok=True)
    said = refused_both_ways(folder, tmp_path)
    assert code in said and "quantization_config" in said


def test_codes_without_a_scale_are_named(tmp_path):
    folder = cases.write(tmp_path / "in", {NAME: torch.ones(SHAPE).to(FP8)}, 1)
    assert f"{NAME}_scale" in refused_both_ways(folder, tmp_path)


@pytest.mark.parametrize("algorithm", ["NVFP4", "W4A8_AWQ", ["FP8"], {"FP8": 1}])
def test_modelopts_other_algorithms_are_named(algorithm, tmp_path):
    folder = cases.write(tmp_path / "in", cases.state())
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": algorithm}}))
    said = refused_both_ways(folder, tmp_path)
    assert "hf_quant_config.json" in said and repr(algorithm) in said


def test_a_quantized_cache_alone_leaves_the_weights_to_be_quantized(tmp_path):
    folder = cases.write(tmp_path / "in", cases.state())
    for content in ({"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}, {}):
        (folder / "hf_quant_config.json").write_text(json.dumps(content))
        cases.run(folder, out := tmp_path / f"out{len(content)}", "int8")
        assert not (out / "hf_quant_config.json").exists()


def test_other_methods_and_plain_checkpoints_are_refused(tmp_path):
    source = cases.write(tmp_path / "in", cases.state())
    assert "is not quantized" in refused(source, tmp_path)
    for method, said in (("gptq", "'gptq'"), ("fp8", "int8, fp8 or int4")):
        (source / "config.json").write_text(
            json.dumps(cases.CONFIG | {"quantization_config": {"quant_method": method}})
        )
        assert said in refused_both_ways(source, tmp_path)
