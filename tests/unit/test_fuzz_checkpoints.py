"""Readers of tensors, tried with files that are nearly right: each takes one, or refuses it in a line."""

import io
import json
import pickle
import struct
from collections import OrderedDict

import pytest
import torch
from fuzzing import as_json, changed, damaged, fuzzed, held, json_files
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import save

from ascend_quant.convert.errors import ConvertError
from ascend_quant.convert.source import open_source, plain_config, quantization
from ascend_quant.profile import flashrl_file, reading
from ascend_quant.profile.checkpoints import Checkpoint
from ascend_quant.profile.layers import groups_of
from ascend_quant.profile.rules import ProfileError
from ascend_quant.profile.w8a8 import read_w8a8
from ascend_quant.selfcheck import given as selfcheck
from ascend_quant.selfcheck.expected import reader

LAYER, FILE = "model.layers.0", "model.safetensors"
UP, DOWN = f"{LAYER}.mlp.up_proj.weight", f"{LAYER}.mlp.down_proj.weight"
CONFIG = {
    "model_type": "qwen2",
    "vocab_size": 20,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "text_config": {"hidden_size": 8, "num_attention_heads": 2, "head_dim": 4},
    "quantization_config": {"quant_method": "compressed-tensors", "format": "int-quantized"},
}
INDEX = {"metadata": {"total_size": 24}, "weight_map": {"a.weight": FILE, "a.weight_scale": FILE}}
HEADER = {
    "__metadata__": {"format": "pt"},
    "a.weight": {"dtype": "I8", "shape": [2, 8], "data_offsets": [0, 16]},
    "a.weight_scale": {"dtype": "F32", "shape": [2, 1], "data_offsets": [16, 24]},
}
DTYPES = st.sampled_from(["I8", "BF16", "F64", "BOOL", "F8_E4M3", "F8_E8M0", "F4", "C64", "U64", "f32", "X"])
SIZES = st.integers(-2, 40) | st.sampled_from([2**31, 2**63, 2**64, 10**30]) | DTYPES | st.none()
ENTRY = {"input_scale": 1.0, "output_scale": torch.full((2, 1), 3.0), "type": torch.int8}
FLASHRL = {
    UP: ENTRY | {"output_scale": torch.tensor([[5.0], [7.0]])},
    DOWN: ENTRY | {"input_scale": torch.tensor([[0.5, 4.0]]), "weight_scale": torch.tensor([0.2, 0.3])},
    f"{LAYER}.input_layernorm.weight": {"input_scale": torch.ones(8) * 2, "output_scale": 1.0, "type": torch.bfloat16},
}
TENSORS = st.sampled_from(
    [
        torch.ones(3),
        torch.zeros(2),
        torch.tensor([1e-45, 3e38]),
        torch.full((2,), torch.nan),
        -torch.ones(2, 1),
        torch.ones(0),
        torch.ones(()),
        torch.ones(2, dtype=torch.complex64),
        torch.ones(2, dtype=torch.int64),
        torch.ones(2, dtype=torch.bool),
        torch.ones(2, dtype=torch.float8_e4m3fn),
        torch.ones(2, dtype=torch.float64) * 1e300,
        torch.ones(2, device="meta"),
        torch.ones(2).to_sparse(),
        torch.ones(1).expand(1 << 40),
        torch.int8,
        torch.float32,
    ]
)
PROFILE = {
    "format": 1,
    "scheme": "int8",
    "arithmetic": "float32",
    "notes": {"bf16": "a"},
    "quantized": {UP: True, f"{LAYER}.post_attention_layernorm.weight": False},
}
PARTS = {
    f"{UP}.input_factor": torch.ones(8) * 2,
    f"{UP}.scale": torch.ones(4),
    f"{LAYER}.post_attention_layernorm.weight.input_factor": torch.ones(8) / 2,
}
NAMES = [f"{LAYER}.self_attn.{part}_proj.weight" for part in "qkvo"] + [f"{LAYER}.input_layernorm.weight"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The working folder, in which nothing must be written."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def safetensors_files():
    """A header that is nearly right, its length before it, and numbers behind it."""
    headers = changed(HEADER, SIZES | st.lists(SIZES, max_size=3)).map(as_json).flatmap(damaged)
    lengths = st.just(0) | st.sampled_from([-1, 1, 1 << 40, -(1 << 62)])
    return st.builds(
        lambda header, off, data: struct.pack("<Q", (len(header) + off) % (1 << 64)) + header + data,
        headers,
        lengths,
        st.just(bytes(range(24))) | st.binary(max_size=30),
    ).flatmap(perhaps_damaged)


def named(layer):
    """A file with an int8 layer of that name, whose scales are of the wrong shape."""
    weight = {"dtype": "I8", "shape": [2, 8], "data_offsets": [0, 16]}
    scale = {"dtype": "F32", "shape": [1, 2], "data_offsets": [16, 24]}
    header = as_json({f"{layer}.weight": weight, f"{layer}.weight_scale": scale})
    return struct.pack("<Q", len(header)) + header + bytes(24)


def all_codes(folder):
    """Those of all int8 layers."""
    w8a8 = read_w8a8(Checkpoint(folder))
    return [w8a8.codes_and_scale(name) for name in w8a8.quantized]


def saved(content):
    """A file of torch's."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def storable(tensors):
    """Those that safetensors can store."""
    kept = [(name, one) for name, one in tensors.items() if isinstance(one, torch.Tensor) and one.is_contiguous()]
    return {name: one.clone() for name, one in kept if one.layout == torch.strided and one.device.type == "cpu"}


def perhaps_damaged(whole):
    return st.just(whole) | damaged(whole)


def looked_at(folder):
    """All that a checkpoint says of its tensors."""
    checkpoint = Checkpoint(folder)
    return [(checkpoint.shape(name), checkpoint.dtype(name), checkpoint.tensor(name)) for name in checkpoint.names]


@fuzzed(200)
@given(safetensors_files(), st.none() | json_files(INDEX))
@example(named("a"), None)
@example(named("a"), as_json({"weight_map": {"a.weight": "9" * 5000 + ".safetensors"}}))
@example(named("a\r"), None)
@example(named("a" * 5000), None)
def test_headers_and_indexes(here, content, index):
    (here / "config.json").write_text(json.dumps(CONFIG))
    (here / FILE).write_bytes(content)
    (here / f"{FILE}.index.json").unlink(missing_ok=True)
    if index is not None:
        (here / f"{FILE}.index.json").write_bytes(index)
    held(lambda: looked_at(here), ProfileError)
    held(lambda: open_source(here), ProfileError, ConvertError)
    held(lambda: all_codes(here), ProfileError)
    held(lambda: reader(here)("a.weight"), ProfileError)


@fuzzed(150)
@given(json_files(CONFIG))
def test_configs_beside_tensors(here, content):
    (here / FILE).write_bytes(save({"a.weight": torch.zeros(2, 8).char(), "a.weight_scale": torch.ones(2, 1)}))
    (here / "config.json").write_bytes(content)
    held(lambda: quantization(open_source(here)), ProfileError, ConvertError)
    held(lambda: plain_config(open_source(here).config), ProfileError, ConvertError)
    held(lambda: read_w8a8(Checkpoint(here)), ProfileError)
    held(lambda: selfcheck.check(here, here, None), selfcheck.WrongUse)


@fuzzed(150)
@given(
    st.sampled_from([CONFIG, {"hidden_size": 8, "num_attention_heads": 2}, {"head_dim": 4}])
    .flatmap(changed)
    .filter(lambda tree: isinstance(tree, dict)),
    st.lists(st.lists(st.integers(0, 9)), max_size=5) | st.just([]),
)
def test_groups_that_share_factors(config, others):
    """Whatever sizes a config has, and whatever shapes the tensors."""
    shapes = dict.fromkeys(NAMES, (8, 8)) | {NAMES[-1]: (8,)}
    shapes |= {name: tuple(shape) for name, shape in zip(NAMES, others, strict=False)}
    for group in held(lambda: groups_of(shapes, shapes.__getitem__, config), ProfileError) or []:
        for pair in group.pairs:
            factor_N = torch.arange(shapes[pair.producer][0]) + 1.0
            spread = pair.spread(factor_N)
            assert len(spread) == shapes[pair.consumer][1] and set(spread.tolist()) == set(factor_N.tolist())


@fuzzed(200)
@given(
    changed(FLASHRL, TENSORS | st.sampled_from([1.0, 2.0, -1, "1", None, [1], {}])).map(saved).flatmap(perhaps_damaged)
)
@example(saved({"a": ENTRY | {"input_scale": torch.ones(3, device="meta")}}))
@example(saved({"a": ENTRY | {"output_scale": torch.tensor([1e-45, 1.0])}}))
def test_flashrls_profiles(here, content):
    """What is read has finite numbers, and no negative scale."""
    (here / "p.pt").write_bytes(content)
    profile = held(lambda: flashrl_file.read(here / "p.pt"), ProfileError)
    for rule in profile.rules.values() if profile else ():
        assert all(tensor.isfinite().all() for tensor in rule.tensors().values())
        assert rule.scale is None or bool((rule.scale >= 0).all())


@fuzzed(100)
@given(st.binary(max_size=60) | st.sampled_from([print, open, OrderedDict, torch.nn.Linear]).map(pickle.dumps))
@example(b"\x80\x02" + b"]" * 3000 + b"a" * 2999 + b".")
def test_pickles_of_anything(here, content):
    (here / "p.pt").write_bytes(content)
    held(lambda: flashrl_file.read(here / "p.pt"), ProfileError)


@fuzzed(150)
@given(json_files(PROFILE), changed(PARTS, TENSORS).map(storable).map(save).flatmap(perhaps_damaged))
def test_our_profiles(here, text, parts):
    (here / "p.json").write_bytes(text)
    (here / "p.safetensors").write_bytes(parts)
    profile = held(lambda: reading.load(here / "p"), ProfileError)
    for rule in profile.rules.values() if profile else ():
        assert all(tensor.isfinite().all() for tensor in rule.tensors().values())
