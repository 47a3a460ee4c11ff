"""A profile's rules lead from the BF16 checkpoint to the W8A8 one: factors, codes, norms, biases, routers.

Rules are applied here by their formula, in float32.
"""

import json
import weakref
from pathlib import Path

import checkpoint_pairs
import pytest
import torch
from checkpoint_pairs import ALL, Pair, make_pair
from safetensors.torch import load_file

from ascend_quant import oracle
from ascend_quant.profile.checkpoints import Checkpoint
from ascend_quant.profile.compare import Comparison, compare_int8
from ascend_quant.profile.reading import load
from ascend_quant.profile.rules import Profile, ProfileError, Rule
from ascend_quant.profile.w8a8 import read_w8a8

NORMS = frozenset({"input_layernorm", "post_attention_layernorm"})


def compared(pair: Pair) -> Comparison:
    return compare_int8(Checkpoint(pair.bf16), read_w8a8(Checkpoint(pair.w8a8)))


def applied(w: torch.Tensor, rule: Rule) -> torch.Tensor:
    x = w.float()
    x = x if rule.output_factor is None else x * rule.output_factor.unsqueeze(-1)
    return x if rule.input_factor is None else x * rule.input_factor


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(next(folder.glob("*.safetensors")))


def check_frozen_codes(pair: Pair, profile: Profile) -> None:
    """At least 99.9 % of each parameter's codes, the rest off by one; scaled parameters to the last bit."""
    bf16, w8a8 = state_of(pair.bf16), state_of(pair.w8a8)
    for name, tensor in w8a8.items():
        if name not in bf16:
            continue
        rule = profile.rules.get(name, Rule(False))
        x = applied(bf16[name], rule)
        if tensor.dtype != torch.int8:
            assert torch.equal(x.to(torch.bfloat16), tensor), name
            continue
        assert rule.quantized, name
        assert torch.equal(rule.scale, w8a8[f"{name}_scale"].float().flatten()), name
        difference = (x / rule.scale.clamp(min=1e-30).unsqueeze(-1)).round().clamp(-128, 127) - tensor
        assert float((difference == 0).float().mean()) >= 0.999, name
        assert int(difference.abs().max()) <= 1, name


@pytest.fixture(scope="module", params=["qwen2", "qwen3-moe"])
def pair(request, tmp_path_factory) -> Pair:
    return make_pair(request.param, tmp_path_factory.mktemp("pair"))


def test_the_unchanged_weights_give_the_checkpoints_codes(pair):
    result = compared(pair)
    check_frozen_codes(pair, result.profile)
    assert result.arithmetic == "float32"
    assert not result.poor


def test_the_factors_are_those_that_were_used(pair):
    rules = compared(pair).profile.rules
    for name, factor_K in pair.columns.items():
        torch.testing.assert_close(rules[name].input_factor, factor_K, rtol=1e-5, atol=0)
    for name, factor_N in pair.rows.items():
        torch.testing.assert_close(rules[name].output_factor, 1 / factor_N, rtol=1e-5, atol=0)


def test_a_saved_profile_is_the_same(pair, tmp_path):
    saved = compared(pair).profile
    saved.save(tmp_path / "profile")
    loaded = load(tmp_path / "profile.json")
    assert (loaded.scheme, loaded.arithmetic, loaded.notes) == (saved.scheme, saved.arithmetic, saved.notes)
    assert loaded.rules.keys() == saved.rules.keys()
    for name, rule in saved.rules.items():
        held = loaded.rules[name].tensors()
        assert rule.quantized == loaded.rules[name].quantized
        assert held.keys() == rule.tensors().keys()
        assert all(torch.equal(held[part], tensor) for part, tensor in rule.tensors().items())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"quantized": {"fc.weight": "no"}}, "fc.weight"),
        ({"quantized": {}}, "fc.weight.input_factor"),
        ({"quantized": ["fc.weight"]}, "quantized"),
        ({"arithmetic": "decimal"}, "decimal"),
        ({"arithmetic": None}, "arithmetic"),
        ({"scheme": 8}, "scheme"),
        ({"notes": "made by hand"}, "notes"),
        ({"format": 7}, "7"),
        ("[" * 100_000, "profile.json"),
        ('{"format": 1, "format": 1}', "format"),
        ("null", "profile.json"),
    ],
)
def test_a_profile_that_says_something_else_is_refused_by_name(tmp_path, change, named):
    Profile("int8", {"fc.weight": Rule(True, torch.ones(4))}).save(tmp_path / "profile")
    file = tmp_path / "profile.json"
    file.write_text(change if isinstance(change, str) else json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ProfileError) as raised:
        load(tmp_path / "profile")
    assert named in str(raised.value)


def test_a_profile_whose_tensors_are_cut_off_is_refused(tmp_path):
    Profile("int8", {"fc.weight": Rule(True, torch.ones(4))}).save(tmp_path / "profile")
    tensors = tmp_path / "profile.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-3])
    with pytest.raises(ProfileError, match="no profile at"):
        load(tmp_path / "profile")


@pytest.mark.parametrize("arithmetic", ["bfloat16", "bfloat16_quotient"])
@pytest.mark.parametrize("kind", ["qwen2", "qwen3-moe"])
def test_the_tools_arithmetic_is_found_and_gives_every_code(kind, arithmetic, tmp_path):
    result = compared(make_pair(kind, tmp_path, arithmetic=arithmetic))
    assert result.arithmetic == result.profile.arithmetic == arithmetic
    assert min(one.equal[arithmetic] for one in result.reproduced) == 1.0
    assert max(one.most for one in result.reproduced) == 1  # in float32 the rest is off by one
    notes, rounds_quotients = result.profile.notes, arithmetic == "bfloat16_quotient"
    assert any("arithmetic" in remark for remark in notes["remarks"]) == rounds_quotients
    assert (notes["codes_equal_in_refits"]["worst"] == 1) != rounds_quotients


@pytest.mark.parametrize(
    "smooth", [frozenset(), NORMS, ALL - {"v_proj"}, ALL - NORMS], ids=["none", "norms", "no-v", "pairs"]
)
def test_what_was_not_smoothed_has_no_factor(smooth, tmp_path):
    pair = make_pair("qwen2", tmp_path, smooth)
    profile = compared(pair).profile
    check_frozen_codes(pair, profile)
    assert {name for name, rule in profile.rules.items() if rule.quantized and rule.input_factor is not None} == set(
        pair.columns
    )
    assert {name for name, rule in profile.rules.items() if rule.output_factor is not None} == set(pair.rows)
    plain = {name for name, rule in profile.rules.items() if not rule.quantized}
    norms = {f"model.layers.{layer}.{norm}.weight" for layer in range(2) for norm in smooth & NORMS}
    biases = {f"model.layers.{layer}.self_attn.v_proj.bias" for layer in range(2) if "v_proj" in smooth}
    assert plain == norms | biases


def test_factors_that_are_no_bf16_numbers(tmp_path):
    """A float32 model's: bounds from 192 rows leave them 1e-4 of room, which must do."""
    result = compared(make_pair("qwen2", tmp_path, factor_dtype=torch.float32))
    assert min(one.equal["float32"] for one in result.reproduced) >= 0.999
    assert max(one.most for one in result.reproduced) == 1


def test_an_ignored_layer_behind_a_smoothed_norm_is_scaled(tmp_path):
    pair = make_pair("qwen2", tmp_path, NORMS, arithmetic="bfloat16")
    name = "model.layers.1.self_attn.k_proj.weight"

    def unquantize(state):
        del state[f"{name}_scale"]
        state[name] = (state_of(pair.bf16)[name].float() * pair.columns[name]).bfloat16()

    checkpoint_pairs.edit(pair.w8a8, unquantize)
    rule = compared(pair).profile.rules[name]
    assert not rule.quantized
    assert torch.equal(rule.input_factor, pair.columns[name])


def test_dead_channels_and_rows(tmp_path):
    """A norm channel of 0 tells nothing of its factor, a row of zeros has no scale."""
    bf16 = checkpoint_pairs.make_bf16("qwen2", tmp_path / "bf16")

    def kill(state):
        state["model.layers.0.input_layernorm.weight"][5] = 0
        state["model.layers.0.mlp.gate_proj.weight"][7] = 0
        state["model.layers.0.self_attn.q_proj.weight"][:, 9] = 0

    checkpoint_pairs.edit(bf16, kill)
    pair = checkpoint_pairs.quantize(bf16, tmp_path / "w8a8")
    checkpoint_pairs.edit(pair.w8a8, lambda state: state["model.layers.0.mlp.gate_proj.weight"][7].zero_())
    check_frozen_codes(pair, compared(pair).profile)


def test_fresh_scales_serve_moved_weights_no_worse_than_frozen_ones(tmp_path):
    """Of every smoothed matrix, by its outputs for activations that its norm would give."""
    pair = make_pair("qwen2", tmp_path)
    profile = compared(pair).profile
    generator = torch.Generator().manual_seed(1)
    fresh_errors, frozen_errors = [], []
    for name, w in state_of(pair.bf16).items():
        rule = profile.rules.get(name, Rule(False))
        if rule.quantized:
            moved = (w.float() * (1 + 0.3 * torch.randn(w.shape, generator=generator))).bfloat16()
            x = applied(moved, rule).float()
            activations = torch.randn(64, w.shape[1], generator=generator)
            exact = activations @ x.T
            fresh = oracle.dequantize(*oracle.quantize_rows(x))
            codes = (x / rule.scale.unsqueeze(-1)).round().clamp(-128, 127)
            frozen = oracle.dequantize(codes, rule.scale)
            fresh_errors.append(float((activations @ fresh.T - exact).norm() / exact.norm()))
            frozen_errors.append(float((activations @ frozen.T - exact).norm() / exact.norm()))
    assert sum(fresh_errors) < sum(frozen_errors)
    assert all(fresh <= 1.05 * frozen for fresh, frozen in zip(fresh_errors, frozen_errors, strict=True))


def test_other_codes_than_the_nearest_are_reported(tmp_path):
    """As GPTQ chooses them: a quarter of the codes is moved by one."""
    pair = make_pair("qwen2", tmp_path, NORMS)
    name = "model.layers.0.mlp.down_proj.weight"

    def move(state):
        codes = state[name].int()
        moved = codes + (torch.rand(codes.shape, generator=torch.Generator().manual_seed(0)) < 0.25)
        state[name] = moved.clamp(-128, 127).to(torch.int8)

    checkpoint_pairs.edit(pair.w8a8, move)
    result = compared(pair)
    assert result.poor.keys() == {name}
    assert 0.7 < result.poor[name] < 0.8
    assert result.profile.notes["not_reproduced"] == result.poor
    assert any("GPTQ" in remark for remark in result.profile.notes["remarks"])
    assert result.profile.rules[name].input_factor is None


def rotate(state):
    name = "model.layers.0.self_attn.o_proj.weight"
    state[name] = state[name].flip(1)


def other_embedding(state):
    state["model.embed_tokens.weight"][3, 5] += 1


def negative_norm(state):
    state["model.layers.1.input_layernorm.weight"][4] *= -1


def other_final_norm(state):
    state["model.norm.weight"] *= 1.5


def wrong_bias(state):
    state["model.layers.0.self_attn.v_proj.bias"] *= 1.1


def norm_bias(state):
    state["model.layers.0.input_layernorm.bias"] = torch.full((128,), 0.1)


def extra(state):
    state["model.layers.0.self_attn.k_scale"] = torch.ones(1)


def lacking(state):
    del state["model.layers.1.mlp.up_proj.weight"], state["model.layers.1.mlp.up_proj.weight_scale"]


@pytest.mark.parametrize(
    "change, named, said",
    [
        (rotate, "layers.0.self_attn.", "rotated"),
        (other_embedding, "embed_tokens.weight", "no rule"),
        (negative_norm, "layers.1.input_layernorm.weight", "no positive factor"),
        (other_final_norm, "model.norm.weight", "no rule"),
        (wrong_bias, "layers.0.self_attn.v_proj.bias", "its values"),
        (norm_bias, "layers.0.input_layernorm.bias", "asymmetric"),
        (extra, "k_scale", "unknown to the BF16"),
        (lacking, "layers.1.mlp.up_proj.weight", "not in"),
    ],
)
def test_what_factors_do_not_express_is_refused(change, named, said, tmp_path):
    pair = make_pair("qwen2", tmp_path)
    checkpoint_pairs.edit(pair.w8a8, change)
    with pytest.raises(ProfileError, match=said) as error:
        compared(pair)
    assert named in str(error.value)


NORM, QUERY = "model.layers.0.input_layernorm.weight", "model.layers.1.self_attn.q_proj.weight"


def with_nan(name):
    return lambda state: state[name].view(-1)[3:4].fill_(torch.nan)


def with_dtype(name, dtype):
    return lambda state: state.update({name: state[name].to(dtype)})


def with_shape(name, *shape):
    return lambda state: state.update({name: torch.ones(shape, dtype=state[name].dtype)})


@pytest.mark.parametrize(
    ("bf16", "w8a8", "named"),
    [
        (with_nan(NORM), None, NORM),
        (None, with_nan(NORM), NORM),
        (with_nan(QUERY), None, QUERY),
        (with_nan("model.embed_tokens.weight"), with_nan("model.embed_tokens.weight"), "embed_tokens"),
        (with_dtype(NORM, torch.int32), None, NORM),
        (None, with_dtype("lm_head.weight", torch.float8_e4m3fn), "lm_head"),
        (with_shape(NORM, 64), None, NORM),
        (with_shape(NORM, 64), with_shape(NORM, 64), NORM),
        (with_shape(NORM, 128, 1), with_shape(NORM, 128, 1), NORM),
        (with_shape(QUERY, 0, 128), with_shape(QUERY, 0, 128), QUERY),
        (with_shape(QUERY, 128), with_shape(QUERY, 128), QUERY),
        (with_shape(QUERY, 128, 64), with_shape(QUERY, 128, 64), QUERY),
    ],
)
def test_values_and_shapes_that_no_model_has_are_named(bf16, w8a8, named, tmp_path):
    pair = make_pair("qwen2", tmp_path)
    for folder, change in ((pair.bf16, bf16), (pair.w8a8, w8a8)):
        if change is not None:
            checkpoint_pairs.edit(folder, change)
    with pytest.raises(ProfileError, match=named):
        compared(pair)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        *(({"num_attention_heads": value}, "num_attention_heads") for value in (0, "4", None, [4])),
        ({"head_dim": "32"}, "head_dim"),
        ({"head_dim": 0}, "head_dim"),
        ({"num_attention_heads": 256}, "no fit"),
        ({"text_config": "qwen2"}, "text_config"),
        ({"quantization_config": "fp8"}, "fp8"),
    ],
)
def test_a_config_that_says_what_it_cannot(changes, said, tmp_path):
    pair = make_pair("qwen2", tmp_path)
    file = pair.bf16 / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ProfileError, match=said):
        compared(pair)


def test_a_tied_lm_head_may_be_left_out(tmp_path):
    bf16 = checkpoint_pairs.make_bf16("qwen2", tmp_path / "bf16", tie_word_embeddings=True)
    pair = checkpoint_pairs.quantize(bf16, tmp_path / "w8a8")
    checkpoint_pairs.edit(
        bf16, lambda state: state.update({"lm_head.weight": state["model.embed_tokens.weight"].clone()})
    )
    check_frozen_codes(pair, compared(pair).profile)


def test_a_quantized_reference_is_refused(tmp_path):
    pair = make_pair("qwen2", tmp_path)
    with pytest.raises(ProfileError, match="quantized itself"):
        compare_int8(Checkpoint(pair.w8a8), read_w8a8(Checkpoint(pair.w8a8)))


def test_reads_grow_linearly_with_experts(tmp_path, monkeypatch):
    """Each tensor is read a fixed number of times, however many experts there are."""
    reads = []
    original = Checkpoint.tensor
    monkeypatch.setattr(Checkpoint, "tensor", lambda self, name: reads.append(name) or original(self, name))
    most = []
    for experts in (4, 16):
        pair = make_pair("qwen3-moe", tmp_path / str(experts), num_experts=experts, num_hidden_layers=1)
        reads.clear()
        compared(pair)
        most.append(max(reads.count(name) for name in set(reads)))
    assert most[0] == most[1] <= 12


def test_few_tensors_are_held_at_once(tmp_path, monkeypatch):
    """Memory is bounded by the largest tensor: a weight, its codes, its scale, the ones before them."""
    held, most = [], []
    original = Checkpoint.tensor

    def tensor(self, name):
        result = original(self, name)
        held.append(weakref.ref(result))
        most.append(sum(one() is not None for one in held))
        return result

    pair = make_pair("qwen3-moe", tmp_path, num_experts=12)
    monkeypatch.setattr(Checkpoint, "tensor", tensor)
    compared(pair)
    assert len(held) > 200
    assert max(most) <= 6


def test_notes_can_be_written_as_json(pair):
    notes = compared(pair).profile.notes
    assert json.loads(json.dumps(notes)) == notes
