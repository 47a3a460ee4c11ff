"""A profile that changes the model's function is refused; whether it does is seen by transformers' own forward pass.

A tiny mixture of experts, smoothed by the textbook (checkpoint_pairs.py), in float32. k3 is the mean of r - 1 - log r,
with r a token's probability by the smoothed model over that by the plain one.
"""

import shutil
from pathlib import Path

import pytest
import torch
from checkpoint_pairs import edit, make_pair
from naming import line_naming
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from ascend_quant.engine.smoothing import Smoothing
from ascend_quant.profile import equivalence
from ascend_quant.profile.checkpoints import BadCheckpoint, Checkpoint
from ascend_quant.profile.compare import compare_int8
from ascend_quant.profile.files import load, save
from ascend_quant.profile.rules import Profile, Rule
from ascend_quant.profile.w8a8 import read_w8a8
from ascend_quant.refit import RefitError

LAYER = "model.layers.1."
NORM, ROUTER = f"{LAYER}post_attention_layernorm.weight", f"{LAYER}mlp.gate.weight"
TOKENS = torch.randint(2, 61, (8, 32), generator=torch.Generator().manual_seed(0))


class Case:
    """A pair of checkpoints, the profile of one by the other, and the plain model's log-probabilities."""

    def __init__(self, folder: Path):
        self.folder, self.pair = folder, make_pair("qwen3-moe", folder)
        self.state = load_file(self.pair.bf16 / "model.safetensors")
        self.profile = compare_int8(Checkpoint(self.pair.bf16), read_w8a8(Checkpoint(self.pair.w8a8))).profile
        self.plain = self.log_probs(self.state)

    def log_probs(self, state: dict[str, torch.Tensor]) -> torch.Tensor:
        out = self.folder / "changed"
        shutil.copytree(self.pair.bf16, out, dirs_exist_ok=True)
        save_file(state, out / "model.safetensors", metadata={"format": "pt"})
        model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
        with torch.no_grad():
            logits = model(TOKENS).logits[:, :-1]
        return logits.log_softmax(-1).gather(-1, TOKENS[:, 1:, None]).squeeze(-1)

    def k3(self, rules: dict[str, Rule]) -> float:
        """With every parameter multiplied by its rule, as refits do it; what keeps BF16 is rounded to that."""
        changed = dict(self.state)
        for name, rule in rules.items():
            x = self.state[name].float() * (1 if rule.input_factor is None else rule.input_factor)
            if rule.output_factor is not None:
                x = x * rule.output_factor.view(-1, *[1] * (x.dim() - 1))
            changed[name] = x.contiguous() if rule.quantized else x.bfloat16()
        log_ratio = self.log_probs(changed) - self.plain
        return float((log_ratio.exp() - 1 - log_ratio).mean())


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Case:
    return Case(tmp_path_factory.mktemp("pair"))


def known_to_flashrl(profile: Profile) -> dict[str, Rule]:
    """What its profiler writes of a mixture of experts: norms and attention."""
    return {name: rule for name, rule in profile.rules.items() if ".mlp." not in name}


def changed(rules: dict[str, Rule], name: str, **parts: torch.Tensor | None) -> dict[str, Rule]:
    rule = rules[name]
    parts = {"input_factor": rule.input_factor, "output_factor": rule.output_factor, "scale": rule.scale} | parts
    return {**rules, name: Rule(rule.quantized, **parts)}


def test_a_whole_profile_of_a_mixture_of_experts_computes_what_the_model_does(case, tmp_path):
    """Its smoothing reaches the routers, and is folded into them."""
    assert not case.profile.rules[ROUTER].quantized and case.profile.rules[ROUTER].input_factor.std() > 0.1
    for path in (save(case.profile, tmp_path / "ours")[0], *save(case.profile, tmp_path / "theirs.pt")):
        loaded = load(path)
        assert len(loaded.rules) == len(case.profile.rules)
        assert case.k3(loaded.rules) < 1e-3


def test_a_flashrl_profile_of_a_mixture_of_experts_is_refused_by_name(case, tmp_path):
    rules = known_to_flashrl(case.profile)
    assert case.k3(rules) > 1e-3  # what it would do
    (path,) = save(Profile("int8", rules), tmp_path / "profile.pt")
    with pytest.raises(BadCheckpoint, match=line_naming("layers.0.post_attention_layernorm.weight:", "FlashRL's")):
        load(path)


DAMAGES = {  # what is done to the rules: the parameter that the error names
    "a router of its own": (lambda rules: changed(rules, ROUTER, input_factor=None), ROUTER),
    "no norm": (lambda rules: {n: r for n, r in rules.items() if n != NORM}, f"{LAYER}mlp."),
    "a norm twice": (lambda rules: changed(rules, NORM, input_factor=rules[NORM].input_factor ** 2), NORM),
    "rows of up": (
        lambda rules: changed(rules, f"{LAYER}mlp.experts.2.up_proj.weight", output_factor=None),
        f"{LAYER}mlp.experts.2.up_proj.weight",
    ),
    "heads of v in another order": (
        lambda rules: changed(
            rules,
            f"{LAYER}self_attn.o_proj.weight",
            input_factor=rules[f"{LAYER}self_attn.o_proj.weight"].input_factor.flip(0),
        ),
        f"{LAYER}self_attn.o_proj.weight",
    ),
    "another norm": (lambda rules: {**rules, "model.norm.weight": Rule(False, torch.full((128,), 3.0))}, "model.norm"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_profile_that_changes_the_function_is_refused(damage, case, tmp_path):
    make, name = DAMAGES[damage]
    rules = make(dict(case.profile.rules))
    assert case.k3(rules) > 3 * case.k3(case.profile.rules)
    path, _ = save(Profile("int8", rules), tmp_path / "profile")
    with pytest.raises(BadCheckpoint, match=name):
        load(path)


def test_a_router_that_a_tool_forgot_is_refused_when_the_profile_is_made(case, tmp_path):
    """The W8A8 checkpoint routes otherwise than the BF16 one."""
    shutil.copytree(case.pair.w8a8, tmp_path / "w8a8")
    edit(tmp_path / "w8a8", lambda state: state.update({ROUTER: case.state[ROUTER]}))
    with pytest.raises(BadCheckpoint, match=ROUTER):
        compare_int8(Checkpoint(case.pair.bf16), read_w8a8(Checkpoint(tmp_path / "w8a8")))


@pytest.mark.parametrize("name", [ROUTER, f"{LAYER}mlp.experts.5.up_proj.weight", f"{LAYER}self_attn.k_proj.weight"])
def test_a_refit_names_what_a_smoothed_norm_feeds_and_the_profile_does_not_know(name, case):
    """What a file alone cannot show: here all of the model's parameters come."""
    smoothing = Smoothing(Profile("int8", {n: r for n, r in case.profile.rules.items() if n != name}), False)
    for weights in (list(case.state.items()), iter(case.state.items())):
        with pytest.raises(RefitError, match=line_naming(f"{name}:", "ascend-quant profile")):
            list(smoothing.through(weights))
    list(Smoothing(case.profile, False).through(list(case.state.items())))


def test_stacks_of_experts_behind_a_smoothed_norm_are_known_by_their_experts(case):
    smoothing = Smoothing(Profile("int8", known_to_flashrl(case.profile)), False)
    with pytest.raises(RefitError, match=r"experts\.0\.gate_proj\.weight"):
        smoothing.through([(f"{LAYER}mlp.experts.gate_up_proj", torch.zeros(6, 144, 128))])


def test_factors_close_to_1_are_none_and_biases_follow_their_rows():
    rows, norm = torch.tensor([2.0, 4.0]), torch.tensor([1.0, 1.001])
    rules = {
        f"{LAYER}input_layernorm.weight": Rule(False, norm),
        f"{LAYER}self_attn.v_proj.weight": Rule(True, None, rows),
        f"{LAYER}self_attn.v_proj.bias": Rule(False, output_factor=rows),
        f"{LAYER}self_attn.o_proj.weight": Rule(True, 1 / torch.tensor([2.0, 2.0, 4.0, 4.0])),
    }
    equivalence.check(rules, rules)
    bias = f"{LAYER}self_attn.v_proj.bias"
    without = {name: rule for name, rule in rules.items() if name != bias}
    equivalence.check(without)
    assert equivalence.reaches(without, bias) == f"{LAYER}self_attn.v_proj.weight"
    for others in (without, changed(rules, bias, output_factor=1 / rows)):
        with pytest.raises(BadCheckpoint, match=bias):
            equivalence.check(others, rules)
