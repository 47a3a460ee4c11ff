"""The smoothing factors of one group: a norm, the layers that read its output, and their pairs.

The solver also detects the arithmetic of the checkpoint's tool: the one whose rounding bounds allow a factor for every
channel.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from ascend_quant.profile.checkpoints import BadCheckpoint, Checkpoint
from ascend_quant.profile.evidence import CLOSE, Evidence, Range
from ascend_quant.profile.layers import Group, Pair
from ascend_quant.profile.rules import ARITHMETICS, Rule
from ascend_quant.profile.w8a8 import W8A8


@dataclass
class Solver:
    """Solver for the factors between two checkpoints; it tries the arithmetic that explained the last group first."""

    reference: Checkpoint
    w8a8: W8A8
    arithmetic: str = ARITHMETICS[0]

    def rules(self, group: Group) -> Iterator[tuple[str, Rule]]:
        """Return the rules of a group's parameters, the norm first; unchanged parameters have none."""
        input_K, factors = self.factors(group)
        if input_K is not None:
            yield group.norm, Rule(False, self.norm_factor(group.norm, input_K))
        yield from self.consumer_rules(group.anchors, input_K)
        for pair, factor_N in factors.items():
            output_N = None if factor_N is None else 1 / factor_N
            yield from self.consumer_rules((pair.producer,), input_K, output_N)
            yield from self.consumer_rules((pair.consumer,), None if factor_N is None else pair.spread(factor_N))
            bias = f"{pair.producer.removesuffix('weight')}bias"
            if output_N is not None and bias in self.reference:
                yield bias, Rule(False, output_N)

    def factors(self, group: Group) -> tuple[torch.Tensor | None, dict[Pair, torch.Tensor | None]]:
        """Find the factor (K) of the layers that read the norm, and the divisor (N) of each pair's producer rows.

        None means no factor. A producer has both factors: the bounds of each narrow the other, and once the columns'
            factor is chosen, the rows' bounds are narrowed again.
        """
        hint = self.norm_ratio(group.norm)
        paired = {pair: self.consumed(pair) for pair in group.pairs}
        if hint is None:
            return None, {pair: found and found.factor() for pair, found in self.with_rows(paired, None).items()}
        shared = self.explain(lambda arithmetic: self.anchored(group, arithmetic))
        shared = shared.narrowed(self.evidence_of_norm(group.norm))
        paired = self.with_rows(paired, shared.range(hint))
        input_K = shared.narrowed(self.all_produced(paired, len(hint))).factor(hint)
        paired = self.with_rows(paired, (input_K, input_K))
        return input_K, {pair: found and found.factor() for pair, found in paired.items()}

    def with_rows(self, paired: dict[Pair, Evidence | None], columns: Range | None) -> dict[Pair, Evidence | None]:
        """Narrow each pair's evidence by its producer's codes; the factor of its columns lies in a range."""
        return {pair: found and found.narrowed(self.produced(pair, columns)) for pair, found in paired.items()}

    def consumer_rules(
        self, names: tuple[str, ...], input_K: torch.Tensor | None, output_N: torch.Tensor | None = None
    ) -> Iterator[tuple[str, Rule]]:
        """Return the rules of weights with these factors; an unquantized weight that is equal in both gets none."""
        for name in names:
            if name in self.w8a8.quantized:
                yield name, Rule(True, input_K, output_N, self.w8a8.codes_and_scale(name)[1])
            elif not same(self.weight(name), self.w8a8.checkpoint.values(name)):
                yield name, Rule(False, input_K, output_N)

    def norm_ratio(self, name: str) -> torch.Tensor | None:
        """Return BF16 / W8A8 (K), the readers' factor up to BF16 rounding; NaN for 0 / 0, None if both are equal."""
        norm, changed = self.weight(name).float(), self.w8a8.checkpoint.values(name)
        if same(norm, changed):
            return None
        ratio = norm / changed.float()
        if changed.shape != norm.shape or not bool(((ratio > 0) & ratio.isfinite() | ratio.isnan()).all()):
            raise BadCheckpoint(f"{name}: no positive factor maps the BF16 weight to the W8A8 weight")
        return ratio

    def norm_factor(self, name: str, input_K: torch.Tensor) -> torch.Tensor:
        """Return the norm's multiplier (K): 1 / input_K, or the plain ratio if 1 / input_K rounds to another number."""
        norm, changed = self.weight(name).float(), self.w8a8.checkpoint.values(name).float()
        rounds_right = (norm / input_K).to(torch.bfloat16) == changed.to(torch.bfloat16)
        return torch.where(rounds_right | (norm == 0), 1 / input_K, changed / norm)

    def evidence_of_norm(self, name: str) -> Evidence:
        """Return the bounds that a norm gives for its divisor: wide, but enough to tell two BF16 values apart."""
        norm, changed = self.weight(name).unsqueeze(0), self.w8a8.checkpoint.values(name).unsqueeze(0)
        evidence = Evidence(norm.shape[1])
        evidence.add_values(norm, changed)
        return evidence.inverse()

    def anchored(self, group: Group, arithmetic: str) -> Evidence:
        """Return the evidence of the weights that have only the norm's factor."""
        evidence = Evidence(self.reference.shape(group.norm)[0])
        for name in group.anchors:
            weight = self.weight(name)
            if name in self.w8a8.quantized:
                evidence.add_codes(weight, *self.w8a8.codes_and_scale(name), arithmetic)
            elif not same(weight, result := self.w8a8.checkpoint.values(name)):
                evidence.add_values(weight, result)
        return evidence

    def consumed(self, pair: Pair) -> Evidence | None:
        """Return a consumer's evidence of the divisor (N) of its producer's rows; None for no factor."""
        if not {pair.consumer, pair.producer} <= self.w8a8.quantized:
            return None
        weight, codes_scale = self.weight(pair.consumer), self.w8a8.codes_and_scale(pair.consumer)

        def collect(arithmetic: str) -> Evidence:
            evidence = Evidence(weight.shape[1])
            evidence.add_codes(weight, *codes_scale, arithmetic)
            return evidence

        evidence = self.explain(collect)
        if evidence.allows_one:
            return None
        evidence = evidence.gathered(pair)
        unsure = not bool(evidence.explained.all())
        return None if unsure and float((evidence.factor() - 1).abs().median()) <= CLOSE else evidence

    def produced(self, pair: Pair, columns: Range | None) -> Evidence:
        """Return a producer's evidence of the same factor; the factor of its columns lies in a range."""
        evidence = Evidence(self.reference.shape(pair.producer)[0])
        codes_scale = self.w8a8.codes_and_scale(pair.producer)
        evidence.add_row_codes(self.weight(pair.producer), *codes_scale, self.arithmetic, columns)
        return evidence.inverse()

    def all_produced(self, paired: Mapping[Pair, Evidence | None], channels: int) -> Evidence:
        """Return producers' evidence of their columns' factor; BF16 arithmetic needs producers without row factors."""
        evidence = Evidence(channels)
        for pair, rows in paired.items():
            if pair.producer in self.w8a8.quantized and (rows is None or self.arithmetic == "float32"):
                divisors = None if rows is None else rows.range()
                codes_scale = self.w8a8.codes_and_scale(pair.producer)
                evidence.add_codes(self.weight(pair.producer), *codes_scale, self.arithmetic, divisors)
        return evidence

    def explain(self, collect: Callable[[str], Evidence]) -> Evidence:
        """Return the evidence in the arithmetic that explains the most channels, trying the last one first."""
        best, most = None, -1.0
        for arithmetic in sorted(ARITHMETICS, key=lambda one: one != self.arithmetic):
            evidence = collect(arithmetic)
            explained = float(evidence.explained.float().mean())
            if explained > most:
                best, most, self.arithmetic = evidence, explained, arithmetic
            if explained == 1.0:
                break
        return best

    def weight(self, name: str) -> torch.Tensor:
        """Return a parameter of the reference, in BF16."""
        return self.reference.values(name).to(torch.bfloat16)


def same(reference: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether tensors are equal in BF16."""
    return reference.shape == other.shape and bool(torch.equal(reference.bfloat16(), other.bfloat16()))
