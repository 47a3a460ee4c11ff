"""Comparison of a BF16 and a W8A8 checkpoint, which yields the rules that map one to the other.

For each layer, the factors are computed (`solve`), then every parameter is derived from the BF16 one by its rule and
compared with the W8A8 checkpoint. Differences that rules cannot express (a rotation, another model, a norm's bias) are
errors.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from statistics import median_low

import torch

from ascend_quant.profile import equivalence
from ascend_quant.profile.arithmetic import of_refits, quotients, requantize, smoothed
from ascend_quant.profile.checkpoints import BadCheckpoint, Checkpoint
from ascend_quant.profile.evidence import blocks
from ascend_quant.profile.layers import groups_of
from ascend_quant.profile.rules import ARITHMETICS, Profile, Rule
from ascend_quant.profile.solve import Solver, same
from ascend_quant.profile.w8a8 import W8A8

MAX_STEPS = 4.0  # root mean square of code minus quotient: nearest rounding gives 0.29, GPTQ 1, chance 30
NEAREST = 0.99  # with a smaller fraction of equal codes, the codes are reported not to be the nearest
MAX_RELATIVE = 2.0**-7  # for a scaled parameter, which was rounded to BF16 once or twice


@dataclass(frozen=True)
class Reproduced:
    """The accuracy with which a rule with frozen scales reproduces a quantized parameter from the BF16 one.

    Attributes:
        equal: fraction of equal codes, by arithmetic (see `arithmetic`).
        steps: root mean square of code minus quotient.
    """

    name: str
    equal: dict[str, float]
    steps: float


@dataclass
class Comparison:
    """A profile, and observations from the comparison.

    Attributes:
        reproduced: one entry for each quantized parameter.
        kinds: number of parameters that are quantized, smoothed (quantized with a factor), scaled, or not quantized.
    """

    profile: Profile
    reproduced: list[Reproduced] = field(default_factory=list)
    kinds: Counter = field(default_factory=Counter)

    @property
    def poor(self) -> dict[str, float]:
        """Return the fraction of equal codes of parameters whose codes are not reproduced, worst first."""
        equal = {one.name: one.equal[self.profile.arithmetic] for one in self.reproduced}
        return {name: equal[name] for name in sorted(equal, key=equal.get) if equal[name] < NEAREST}


def compare_int8(reference: Checkpoint, w8a8: W8A8, progress: Callable[[str], None] = lambda name: None) -> Comparison:
    """Return the profile of a W8A8 checkpoint.

    Args:
        reference: the BF16 checkpoint; other float dtypes are rounded to BF16 first, as in every refit.
        progress: called with the name of each parameter of `reference` when it is done.

    Raises:
        BadCheckpoint: names or shapes differ, a parameter changed in a way that no rule expresses, or the W8A8
            checkpoint computes another function: for example, a norm was divided, but the router after it not
            multiplied.
    """
    check_names(reference, w8a8)
    result = Comparison(Profile("int8", {}))
    rules: dict[str, Rule] = {}
    solver = Solver(reference, w8a8)
    done = set()
    for group in groups_of(reference.names, reference.shape, reference.config):
        found = dict(solver.rules(group))
        rules |= found
        for name in dict.fromkeys((*group.members, *found)):
            done.add(name)
            check(result, reference, w8a8, name, found.get(name))
            progress(name)
    for name in reference.names:
        if name not in done:
            if name in w8a8.quantized:
                rules[name] = Rule(True, scale=w8a8.codes_and_scale(name)[1])
            check(result, reference, w8a8, name, rules.get(name))
            progress(name)
    equivalence.check(rules, reference.names)
    result.profile = Profile("int8", rules, arithmetic=arithmetic_of(result.reproduced))
    result.profile = replace(result.profile, notes=notes_of(result, reference, w8a8))
    return result


def arithmetic_of(reproduced: list[Reproduced]) -> str:
    """Return the arithmetic in which most codes are equal; float32 if none reproduces most parameters."""
    equal = {a: median_low([one.equal[a] for one in reproduced]) for a in ARITHMETICS}
    best = max(ARITHMETICS, key=equal.get)
    return best if equal[best] >= NEAREST else ARITHMETICS[0]


def check_names(reference: Checkpoint, w8a8: W8A8) -> None:
    """Check that both have the same parameters and shapes, except for a tied lm_head and zero biases."""
    if section := reference.config.get("quantization_config"):
        method = section.get("quant_method") if isinstance(section, dict) else section
        raise BadCheckpoint(f"{reference.folder} is itself quantized ({method!r:.80}); give the BF16 model")
    here, there = set(reference.names), w8a8.quantized | w8a8.plain
    for name in sorted(there - here):
        if name.endswith("bias") and not bool(w8a8.checkpoint.tensor(name).any()):
            continue
        reason = "unknown to the BF16 checkpoint"
        if name.endswith(("norm.bias", "proj.bias", "norm.module.bias")):
            reason = "a bias that the BF16 checkpoint lacks: asymmetric outlier suppression shifts activations, which"
            reason += " factors do not express; make the W8A8 checkpoint with a symmetric method"
        raise BadCheckpoint(f"{name} in {w8a8.checkpoint.folder}: {reason}")
    tied = any(one.config.get("tie_word_embeddings") is True for one in (reference, w8a8.checkpoint))
    folded = {f"{name.removesuffix('weight')}bias" for name in w8a8.quantized if w8a8.format == "ModelSlim"}
    for name in sorted(here - there - folded):
        if not (tied and name == "lm_head.weight"):
            raise BadCheckpoint(f"{name}: is in {reference.folder}, but not in {w8a8.checkpoint.folder}")
    for name in sorted(here & there):
        shape, other = reference.shape(name), w8a8.checkpoint.shape(name)
        if shape != other or 0 in shape:
            raise BadCheckpoint(f"{name}: shape {shape} in the BF16 model, but {other} in the W8A8 model")


def check(result: Comparison, reference: Checkpoint, w8a8: W8A8, name: str, rule: Rule | None) -> None:
    """Derive a parameter by its rule, compare it with the checkpoint's, and count it in `result`.

    Raises:
        BadCheckpoint: the result differs from the checkpoint.
    """
    weight = reference.values(name)
    if rule is not None and rule.quantized:
        codes_NK, scale_N = w8a8.codes_and_scale(name)
        one = reproduce(name, weight, codes_NK, scale_N, rule)
        if not one.steps <= MAX_STEPS:
            found = (
                f"{one.steps:.1f} code steps (root mean square) from the values that the best row and column "
                "factors give"
            )
            raise BadCheckpoint(f"{name}: {found}; the checkpoints have different weights, or one was rotated")
        result.reproduced.append(one)
        result.kinds["quantized" if len(rule.tensors()) == 1 else "smoothed"] += 1
        return
    result.kinds["not quantized" if rule is None else "scaled"] += 1
    if name not in w8a8.plain:
        return  # a tied lm_head, or a bias that ModelSlim stores only in quant_bias
    other = w8a8.checkpoint.values(name)
    if rule is None and not same(weight, other):
        raise BadCheckpoint(f"{name}: differs between the checkpoints, and no smoothing rule explains the difference")
    if rule is not None:
        made = smoothed(weight, rule).to(torch.bfloat16).float()
        if not bool(((made - other.float()).abs() <= MAX_RELATIVE * made.abs()).all()):
            raise BadCheckpoint(f"{name}: the smoothing factor of its group does not reproduce its values")


def reproduce(name: str, w_NK: torch.Tensor, codes_NK: torch.Tensor, scale_N: torch.Tensor, rule: Rule) -> Reproduced:
    """Count the equal codes, a few rows at a time."""
    equal, squares = dict.fromkeys(ARITHMETICS, 0), 0.0
    for rows in blocks(w_NK):
        output_N = None if rule.output_factor is None else rule.output_factor[rows]
        part = Rule(True, rule.input_factor, output_N)
        for arithmetic in ARITHMETICS:
            x = smoothed(w_NK[rows], part, arithmetic)
            difference = requantize(x, scale_N[rows], arithmetic) - codes_NK[rows]
            equal[arithmetic] += int((difference == 0).sum())
            if arithmetic == "float32":
                squares += float((quotients(x, scale_N[rows].unsqueeze(-1)) - codes_NK[rows]).double().square().sum())
    count = w_NK.numel()
    return Reproduced(name, {a: number / count for a, number in equal.items()}, (squares / count) ** 0.5)


def notes_of(result: Comparison, reference: Checkpoint, w8a8: W8A8) -> dict[str, object]:
    """Return where the profile comes from and how well it reproduces the checkpoint."""
    tool = [one.equal[result.profile.arithmetic] for one in result.reproduced]
    here = [one.equal[of_refits(result.profile.arithmetic)] for one in result.reproduced]
    return {
        "bf16": reference.folder.name,
        "w8a8": w8a8.checkpoint.folder.name,
        "format": w8a8.format,
        "arithmetic": result.profile.arithmetic,
        "codes_equal_in_its_arithmetic": {"worst": min(tool), "median": median_low(tool)},
        "codes_equal_in_refits": {"worst": min(here), "median": median_low(here)},
        "not_reproduced": result.poor,
        "remarks": list(remarks(result, w8a8)),
    }


def remarks(result: Comparison, w8a8: W8A8) -> Iterator[str]:
    """Yield remarks for the user, one sentence each."""
    if poor := result.poor:
        yield (
            f"{len(poor)} of {len(result.reproduced)} quantized parameters have codes that are not the nearest ones, as"
            " GPTQ chooses them: no re-quantization reproduces those; scales are recomputed at every refit, so the"
            " profile can be used."
        )
    if (tool := result.profile.arithmetic) != (ours := of_refits(tool)):
        yield (
            f"The checkpoint was quantized in {tool} arithmetic, refits use {ours}: the codes that differ "
            f"({1 - median_low([one.equal[ours] for one in result.reproduced]):.1%} at the median) do so because the "
            "tool rounds its quotients."
        )
    if w8a8.static:
        yield f"{w8a8.static} layers have static activation scales; not used: activations are quantized per token."
