"""Checkpoints of both W8A8 formats, in one file or many, and what is refused by name."""

import json

import checkpoint_pairs
import pytest
import torch
from checkpoint_pairs import Pair, as_modelslim, make_pair
from naming import line_naming
from safetensors.torch import load_file, save_file

from ascend_quant.profile.checkpoints import BadCheckpoint, Checkpoint, find
from ascend_quant.profile.compare import compare_int8
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


SCALE = f"{NAME}_scale"
CHANGES = [  # of the W8A8 checkpoint's tensors, and what is said of them
    (lambda state: state.update({NAME.replace("weight", "weight_zero_point"): torch.full((192, 1), 3)}), "asymmetric"),
    (lambda state: state.update({SCALE: torch.ones(192, 4)}), "per output channel"),
    (lambda state: state.update({SCALE: torch.ones(1)}), "per output channel"),
    (lambda state: state[SCALE].view(-1)[3:4].fill_(torch.nan), "NaN"),
    (lambda state: state.update({NAME: state[NAME].to(torch.float8_e4m3fn)}), "int8"),
]


def test_other_quantization_is_refused_by_name(own, tmp_path):
    held = load_file(own.w8a8 / "model.safetensors")
    for change, said in CHANGES:
        save_file({name: tensor.clone() for name, tensor in held.items()}, own.w8a8 / "model.safetensors")
        checkpoint_pairs.edit(own.w8a8, change)
        with pytest.raises(BadCheckpoint, match=line_naming(NAME, said)):
            rules_of(own)
    save_file(held, own.w8a8 / "model.safetensors")
    slim = as_modelslim(own, tmp_path / "slim")
    path = slim.w8a8 / "quant_model_description.json"
    described = json.loads(path.read_text())
    path.write_text(json.dumps(described | {NAME: "W4A8_DYNAMIC"}))
    with pytest.raises(BadCheckpoint, match=line_naming(NAME, "W4A8_DYNAMIC")):
        rules_of(slim)
    path.write_text(json.dumps(described))
    checkpoint_pairs.edit(slim.w8a8, lambda state: state[NAME.replace("weight", "weight_offset")][5].fill_(2))
    with pytest.raises(BadCheckpoint, match=line_naming(NAME, "asymmetric")):
        rules_of(slim)


def test_other_formats_are_refused(own):
    path = own.w8a8 / "config.json"
    config = json.loads(path.read_text())
    (own.bf16 / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadCheckpoint, match="no quantized weight"):
        read_w8a8(Checkpoint(own.bf16))
    packed = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    for section, said in ((None, "W8A8"), ({"quant_method": "gptq"}, "'gptq'"), (packed, "'pack-quantized'")):
        path.write_text(json.dumps(config | {"quantization_config": section}))
        with pytest.raises(BadCheckpoint, match=said):
            rules_of(own)


def test_folders_that_are_no_checkpoint(own, tmp_path):
    assert find(str(own.bf16)) == own.bf16
    for name in (str(tmp_path / "nothing"), "nobody/no-such-model"):  # tests are offline
        with pytest.raises(BadCheckpoint, match=line_naming(name)):
            find(name)
    checkpoint_pairs.shard(own.w8a8, 2)
    (own.w8a8 / "model-00002-of-00002.safetensors").unlink()
    for folder, named in ((tmp_path, str(tmp_path)), (own.w8a8, "model-00002-of-00002")):
        with pytest.raises(BadCheckpoint, match=named):
            Checkpoint(folder)
