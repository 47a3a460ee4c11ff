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
from naming import line_naming
from safetensors.torch import load_file

from ascend_quant.profile.checkpoints import BadCheckpoint, Checkpoint
from ascend_quant.profile.compare import Comparison, compare_int8
from ascend_quant.profile.files import load, save
from ascend_quant.profile.rules import Profile, Rule
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


def check_frozen_codes(pair: Pair, profile: Profile, least: float = 0.999) -> None:
    """At least so many of each parameter's codes, the rest off by one; scaled parameters to the last bit."""
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
        assert float((difference == 0).float().mean()) >= least, name
        assert int(difference.abs().max()) <= 1, name


@pytest.fixture(scope="module", params=["qwen2", "qwen3-moe"])
def pair(request, tmp_path_factory) -> Pair:
    return make_pair(request.param, tmp_path_factory.mktemp("pair"))


def test_the_factors_are_those_that_were_used_and_give_the_checkpoints_codes(pair):
    result = compared(pair)
    check_frozen_codes(pair, result.profile)
    assert result.profile.arithmetic == "float32" and not result.poor
    rules = result.profile.rules
    for name, factor_K in pair.columns.items():
        torch.testing.assert_close(rules[name].input_factor, factor_K, rtol=1e-5, atol=0)
    for name, factor_N in pair.rows.items():
        torch.testing.assert_close(rules[name].output_factor, 1 / factor_N, rtol=1e-5, atol=0)


@pytest.mark.parametrize("arithmetic", ["bfloat16", "bfloat16_quotient"])
@pytest.mark.parametrize("kind", ["qwen2", "qwen3-moe"])
def test_the_tools_arithmetic_is_found_and_gives_every_code(kind, arithmetic, tmp_path):
    pair = make_pair(kind, tmp_path, arithmetic=arithmetic)
    result = compared(pair)
    assert result.profile.arithmetic == arithmetic
    assert min(one.equal[arithmetic] for one in result.reproduced) == 1.0
    check_frozen_codes(pair, result.profile, least=0.85)
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
    assert max(one.steps for one in result.reproduced) < 0.3


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


def test_a_tied_lm_head_may_be_left_out(tmp_path):
    bf16 = checkpoint_pairs.make_bf16("qwen2", tmp_path / "bf16", tie_word_embeddings=True)
    pair = checkpoint_pairs.quantize(bf16, tmp_path / "w8a8")
    checkpoint_pairs.edit(
        bf16, lambda state: state.update({"lm_head.weight": state["model.embed_tokens.weight"].clone()})
    )
    check_frozen_codes(pair, compared(pair).profile)


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


def test_a_file_that_is_no_profile_is_refused_by_name(tmp_path):
    save(Profile("int8", {"fc.weight": Rule(True, torch.ones(4))}), tmp_path / "profile")
    file, tensors = tmp_path / "profile.json", tmp_path / "profile.safetensors"
    content = json.loads(file.read_text())
    for change, named in (
        ({"quantized": {"fc.weight": "no"}}, "fc.weight"),
        ({"quantized": {}}, "fc.weight.input_factor"),
        ({"arithmetic": "decimal"}, "decimal"),
        ({"format": 7}, "7"),
    ):
        file.write_text(json.dumps(content | change))
        with pytest.raises(BadCheckpoint, match=named):
            load(tmp_path / "profile")
    file.write_text(json.dumps(content))
    tensors.write_bytes(tensors.read_bytes()[:-3])
    with pytest.raises(BadCheckpoint, match="profile"):
        load(tmp_path / "profile")


LAYER = "model.layers.0."
NORM, QUERY, O_PROJ = (
    f"{LAYER}input_layernorm.weight",
    f"{LAYER}self_attn.q_proj.weight",
    f"{LAYER}self_attn.o_proj.weight",
)
EMBEDDING, V_BIAS, EXTRA = "model.embed_tokens.weight", f"{LAYER}self_attn.v_proj.bias", f"{LAYER}self_attn.k_scale"


def with_nan(name):
    return lambda state: state[name].view(-1)[3:4].fill_(torch.nan)


@pytest.mark.parametrize(
    ("bf16", "w8a8", "named"),
    [
        (None, lambda state: state.update({O_PROJ: state[O_PROJ].flip(1)}), f"{LAYER}self_attn"),  # as if rotated
        (None, lambda state: state[EMBEDDING][3].add_(1), EMBEDDING),
        (None, lambda state: state[NORM][4].mul_(-1), NORM),
        (None, lambda state: state["model.norm.weight"].mul_(1.5), "model.norm.weight"),
        (None, lambda state: state[V_BIAS].mul_(1.1), V_BIAS),
        (None, lambda state: state.update({NORM.replace("weight", "bias"): torch.ones(128)}), "input_layernorm"),
        (None, lambda state: state.update({EXTRA: torch.ones(1)}), EXTRA),
        (None, lambda state: [state.pop(f"{QUERY}{leaf}") for leaf in ("", "_scale")], QUERY),
        (with_nan(NORM), None, NORM),
        (None, with_nan(NORM), NORM),
        (with_nan(QUERY), None, QUERY),
        (lambda state: state.update({NORM: torch.ones(64)}), None, NORM),
    ],
)
def test_what_factors_do_not_express_is_refused_by_name(bf16, w8a8, named, tmp_path):
    pair = make_pair("qwen2", tmp_path)
    for folder, change in ((pair.bf16, bf16), (pair.w8a8, w8a8)):
        if change is not None:
            checkpoint_pairs.edit(folder, change)
    with pytest.raises(BadCheckpoint, match=named):
        compared(pair)


def test_a_config_that_says_what_it_cannot(tmp_path):
    pair = make_pair("qwen2", tmp_path)
    with pytest.raises(BadCheckpoint, match=line_naming(pair.w8a8, "'compressed-tensors'")):
        compare_int8(Checkpoint(pair.w8a8), read_w8a8(Checkpoint(pair.w8a8)))
    file = pair.bf16 / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_attention_heads": 256}))
    with pytest.raises(BadCheckpoint, match="v_proj"):
        compared(pair)
