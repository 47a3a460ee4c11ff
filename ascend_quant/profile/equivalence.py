"""Equivalence check: a profile must not change the model's function, shown algebraically for all weights and tokens.

    norm           n / s        its consumers     W * s         the product of both factors is 1
    v or up        W / t        o or down         W * t         the same, with heads of v repeated for those of o

Only after a norm and along these two pairs does multiplication commute with the operations between a factor and its
inverse. So any other factor, or a factor without its inverse in all layers that it reaches, changes the function. This
needs neither a model nor tokens, and holds up to the rounding of BF16 parameters.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import torch

from ascend_quant.profile.checkpoints import BadCheckpoint
from ascend_quant.profile.layers import LAYER, ROLES
from ascend_quant.profile.rules import Rule

CLOSE = 2.0**-7  # tolerance of a product of factors, since norms and routers are BF16 numbers
FACTORS = ("input_factor", "output_factor")
NO_RULE = Rule(False)
ADVICE = "create the profile with `ascend-quant profile` from checkpoints that are smoothed completely"


def check(rules: Mapping[str, Rule], names: Iterable[str] = ()) -> None:
    """Check that a profile's factors cancel.

    Args:
        rules: rules by checkpoint parameter name, with single experts.
        names: all names of the checkpoint, if known; parameters without a rule are not changed.

    Raises:
        BadCheckpoint: a factor is not undone or not allowed; the message names the parameter.
    """
    names = frozenset(names)
    layers: dict[str, list[str]] = {}
    for name in dict.fromkeys((*rules, *names)):
        if found := LAYER.fullmatch(name):
            layers.setdefault(found["layer"], []).append(found["rest"])
    allowed: set[tuple[str, str]] = set()  # names, and which of their factors are verified
    for layer, rests in layers.items():
        for norm, (anchor, producer, partners) in ROLES.items():
            name = f"{layer}.{norm}.weight"
            producers = [f"{layer}.{rest}.weight" for rest in rests if re.fullmatch(producer, rest)]
            fed = [f"{layer}.{rest}.weight" for rest in rests if re.fullmatch(anchor, rest)] + producers
            has_experts = norm == "post_attention_layernorm" and any(rest.startswith("mlp.experts.") for rest in rests)
            _check_norm(rules, name, fed, f"{layer}.mlp.gate.weight" if has_experts else None)
            allowed |= {(name, part) for part in FACTORS} | {(one, "input_factor") for one in fed}
            for one in producers:
                consumer, bias = one.replace(*(f".{leaf}." for leaf in partners)), f"{one.removesuffix('weight')}bias"
                _check_pair(rules, one, consumer, bias if bias in rules or bias in names else None)
                allowed |= {(one, "output_factor"), (consumer, "input_factor"), *((bias, part) for part in FACTORS)}
    for name, rule in rules.items():
        for part in FACTORS:
            if (name, part) not in allowed and not _is_one(getattr(rule, part)):
                raise BadCheckpoint(
                    f"{name}: no other weight compensates its {part}, so it changes the model; {ADVICE}"
                )


def reaches(rules: Mapping[str, Rule], name: str) -> str | None:
    """Return the parameter whose factor a parameter without a rule must undo or share; None if there is none."""
    if name.endswith(".bias"):
        weight = f"{name.removesuffix('bias')}weight"
        return None if _is_one(rules.get(weight, NO_RULE).output_factor) else weight
    if found := LAYER.fullmatch(name):
        for norm, (anchor, producer, _) in ROLES.items():
            norm = f"{found['layer']}.{norm}.weight"
            if re.fullmatch(f"{anchor}|{producer}", found["rest"]) and not _is_one(_of_vector(rules, norm)):
                return norm
    return None


def _check_norm(rules: Mapping[str, Rule], name: str, fed: Sequence[str], router: str | None) -> None:
    """Check a norm; `router` is that of a layer with experts, which the profile may have omitted."""
    factor = _of_vector(rules, name)
    columns = {one: rules.get(one, NO_RULE).input_factor for one in fed}
    if all(map(_is_one, (factor, *columns.values()))):
        return
    if not fed or (router and router not in fed):
        missing = router or "what it feeds"
        raise BadCheckpoint(
            f"{name}: the norm is smoothed, and the profile has no rule for {missing}, which reads its output "
            f"(FlashRL's profiler skips experts and routers); {ADVICE}"
        )
    for one, factor_K in columns.items():
        if not _cancel(factor, factor_K):
            raise BadCheckpoint(
                f"{one}: is not multiplied by the inverse of the factor of {name}, whose output it reads; {ADVICE}"
            )


def _check_pair(rules: Mapping[str, Rule], producer: str, consumer: str, bias: str | None) -> None:
    rows = rules.get(producer, NO_RULE).output_factor
    if not _cancel_over_heads(rows, rules.get(consumer, NO_RULE).input_factor):
        raise BadCheckpoint(
            f"{consumer}: is not multiplied by the inverse of the factor of {producer}'s rows; {ADVICE}"
        )
    if bias is not None:
        factor = _of_vector(rules, bias)
        if not _cancel(rows, None if factor is None else 1 / factor.float()):
            raise BadCheckpoint(f"{bias}: is not multiplied by the factor of {producer}'s rows; {ADVICE}")


def _of_vector(rules: Mapping[str, Rule], name: str) -> torch.Tensor | None:
    """Return the product of all factors of a norm or a bias."""
    rule = rules.get(name, NO_RULE)
    if rule.output_factor is None or rule.input_factor is None:
        return rule.input_factor if rule.output_factor is None else rule.output_factor
    return rule.input_factor * rule.output_factor


def _is_one(factor: torch.Tensor | None) -> bool:
    return factor is None or bool(((factor.float() - 1).abs() <= CLOSE).all())


def _cancel(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return _is_one(one) and _is_one(other)
    return one.shape == other.shape and _is_one(one.float() * other.float())


def _cancel_over_heads(rows_N: torch.Tensor | None, columns_K: torch.Tensor | None) -> bool:
    """Return whether factors cancel for some head size, with each head of rows feeding adjacent heads of columns."""
    if rows_N is None or columns_K is None or len(columns_K) == len(rows_N):
        return _cancel(rows_N, columns_K)
    groups, rest = divmod(len(columns_K), len(rows_N))
    if rest:
        return False
    heads = (head for head in range(1, len(rows_N) + 1) if len(rows_N) % head == 0)
    return any(_is_one(rows_N.float().view(-1, 1, head) * columns_K.float().view(-1, groups, head)) for head in heads)
