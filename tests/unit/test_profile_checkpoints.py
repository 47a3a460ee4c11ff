"""Checkpoints of both W8A8 formats, in one file or many, and what is refused by name."""

import json

import checkpoint_pairs
import pytest
import torch
from checkpoint_pairs import Pair, as_modelslim, make_pair
from naming import line_naming
from safetensors.torch import load_file

from ascend_quant.profile.checkpoints import Checkpoint, find
from ascend_quant.profile.compare import compare_int8
from ascend_quant.profile.rules import ProfileError
from ascend_quant.profile.w8a8 import read_w8a8

NAME = "model.layers.1.mlp.gate_proj.weight"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Pair:
    """Read, not edited."""
    return make_pair("qwen2", tmp_path_factory.mktemp("made"))


@pytest.fixture
def own(tmp_path) -> Pair:
    """To be edited."""
    return make_pair("qwen2", tmp_path)


def rules_of(pair: Pair):
    return compare_int8(Checkpoint(pair.bf16), read_w8a8(Checkpoint(pair.w8a8))).profile.rules


def assert_same_rules(first, second):
    assert first.keys() == second.keys()
    for name, rule in first.items():
        assert rule.tensors().keys() == second[name].tensors().keys(), name
        assert all(torch.equal(tensor, second[name].tensors()[part]) for part, tensor in rule.tensors().items()), name


def test_shards_are_read_as_one_file(made, own):
    checkpoint_pairs.shard(own.w8a8, 3)
    checkpoint_pairs.shard(own.bf16, 2)
    assert_same_rules(rules_of(own), rules_of(made))


def test_tensors_are_those_of_the_file(made):
    checkpoint = Checkpoint(made.w8a8)
    for name, tensor in load_file(made.w8a8 / "model.safetensors").items():
        assert torch.equal(checkpoint.tensor(name), tensor)
        assert checkpoint.shape(name) == tuple(tensor.shape)


@pytest.mark.parametrize("static", [(), ("q_proj", "k_proj", "v_proj")], ids=["dynamic", "static"])
def test_modelslim_gives_the_same_rules(static, made, tmp_path):
    """Static layers keep their bias in quant_bias alone."""
    slim = as_modelslim(made, tmp_path / "slim", static)
    result = compare_int8(Checkpoint(slim.bf16), read_w8a8(Checkpoint(slim.w8a8)))
    assert result.profile.notes["format"] == "ModelSlim"
    assert_same_rules(result.profile.rules, rules_of(made))
    assert any("static" in remark for remark in result.profile.notes["remarks"]) == bool(static)


def test_a_zero_norm_bias_is_no_bias(made, tmp_path):
    slim = as_modelslim(made, tmp_path / "slim")
    checkpoint_pairs.edit(slim.w8a8, lambda state: state.update({"model.norm.bias": torch.zeros(128)}))
    assert_same_rules(rules_of(slim), rules_of(made))


def asymmetric(state):
    state[NAME.replace("weight", "weight_zero_point")] = torch.full((192, 1), 3, dtype=torch.int8)


def grouped(state):
    state[f"{NAME}_scale"] = torch.ones(192, 4)


def per_tensor(state):
    state[f"{NAME}_scale"] = torch.ones(1)


def not_finite(state):
    state[f"{NAME}_scale"][3] = torch.nan


def not_int8(state):
    state[NAME] = state[NAME].to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    "change, said",
    [
        (asymmetric, "asymmetric"),
        (grouped, "per output channel"),
        (per_tensor, "per output channel"),
        (not_finite, "NaN"),
        (not_int8, "int8"),
    ],
)
def test_other_quantization_is_refused_by_name(change, said, own):
    checkpoint_pairs.edit(own.w8a8, change)
    with pytest.raises(ProfileError, match=said) as error:
        rules_of(own)
    assert NAME in str(error.value)


def test_a_modelslim_offset_is_refused_by_name(own, tmp_path):
    slim = as_modelslim(own, tmp_path / "slim")

    def shift(state):
        state[NAME.replace("weight", "weight_offset")][5] = 2

    checkpoint_pairs.edit(slim.w8a8, shift)
    with pytest.raises(ProfileError, match=f"{NAME}: asymmetric"):
        rules_of(slim)


def test_another_modelslim_type_is_refused_by_name(own, tmp_path):
    slim = as_modelslim(own, tmp_path / "slim")
    path = slim.w8a8 / "quant_model_description.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {NAME: "W4A8_DYNAMIC"}))
    with pytest.raises(ProfileError, match=f"{NAME}: W4A8_DYNAMIC"):
        rules_of(slim)


@pytest.mark.parametrize(
    "section, said",
    [
        (None, "not a W8A8 checkpoint"),
        ({"quant_method": "gptq"}, "'gptq'"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "'pack-quantized'"),
    ],
)
def test_other_formats_are_refused(section, said, own):
    path = own.w8a8 / "config.json"
    config = json.loads(path.read_text()) | {"quantization_config": section}
    path.write_text(json.dumps(config))
    with pytest.raises(ProfileError, match=said):
        rules_of(own)


def test_an_unquantized_checkpoint_that_claims_to_be_is_refused(own):
    (own.bf16 / "config.json").write_text((own.w8a8 / "config.json").read_text())
    with pytest.raises(ProfileError, match="no quantized weight"):
        read_w8a8(Checkpoint(own.bf16))


def test_folders_that_are_no_checkpoint(own, tmp_path):
    with pytest.raises(ProfileError, match="not found"):
        Checkpoint(tmp_path)
    checkpoint_pairs.shard(own.w8a8, 2)
    (own.w8a8 / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ProfileError, match="model-00002-of-00002"):
        Checkpoint(own.w8a8)


def test_find(made, tmp_path):
    assert find(str(made.bf16)) == made.bf16
    with pytest.raises(ProfileError, match="no model at"):
        find(str(tmp_path / "nothing"))
    pytest.importorskip("huggingface_hub")
    with pytest.raises(ProfileError, match=line_naming("nobody/no-such-model", "hub")):  # tests are offline
        find("nobody/no-such-model")
