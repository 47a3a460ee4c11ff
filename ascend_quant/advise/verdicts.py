"""What follows from the rollouts of all schemes: speedups, the reason, and how far measured figures are from them."""

from collections.abc import Mapping
from dataclasses import dataclass

from ascend_quant.advise import AdviceError, experts, steps
from ascend_quant.advise.devices import SCHEMES, Device
from ascend_quant.advise.rollouts import DoesNotFit, Rollout, Workload, rollout
from ascend_quant.advise.shapes import Shape

# How far the speedups of dense models are from measured ones: at most 12 % in eight cases on an H200 (test_advise.py).
UNCERTAINTY = 0.12


@dataclass(frozen=True)
class Advice:
    """All that is said about one workload.

    Attributes:
        rollouts: by scheme.
        absent: why a scheme has no rollout.
        speedups: tokens/s of each quantized scheme, of BF16's; empty where BF16 does not fit.
        verdicts: a sentence or two on each quantized scheme.
        experts: what int8 experts reached, vLLM's and ours; empty for a dense model.
        measured: the user's figures against the expected ones.
    """

    rollouts: dict[str, Rollout]
    absent: dict[str, str]
    speedups: dict[str, float]
    verdicts: dict[str, str]
    experts: list[str]
    measured: list[str]


def advise(
    shape: Shape, device: Device, workload: Workload, efficiency: float, measured: Mapping[str, float | None]
) -> Advice:
    """Estimate every scheme and compare.

    Args:
        measured: the user's own tokens/s by scheme, or None.

    Raises:
        AdviceError: no scheme fits, or a measured figure has nothing to be compared with.
    """
    rollouts, absent = {}, {}
    for scheme in SCHEMES:
        if scheme not in device.rates:
            absent[scheme] = f"{device.name} has no {scheme} units"
            continue
        try:
            rollouts[scheme] = rollout(shape, scheme, device, workload, efficiency)
        except DoesNotFit as error:
            absent[scheme] = str(error)
    if not rollouts:
        raise AdviceError("; ".join(absent.values()))
    base = rollouts.get("bf16")
    quantized = [scheme for scheme in rollouts if scheme != "bf16"]
    speedups = {s: rollouts[s].tokens_per_second / base.tokens_per_second for s in quantized} if base else {}
    return Advice(
        rollouts=rollouts,
        absent=absent,
        speedups=speedups,
        verdicts={s: verdict(base, rollouts[s], workload) for s in quantized},
        experts=about_experts(speedups.get("int8")) if shape.expert_layers and "int8" in rollouts else [],
        measured=against_measured(rollouts, measured),
    )


def verdict(base: Rollout | None, quantized: Rollout, workload: Workload) -> str:
    """Whether it pays, and why."""
    name = quantized.scheme
    if base is None:
        return f"{name} fits, where bf16 does not."
    speedup = quantized.tokens_per_second / base.tokens_per_second
    if steps.EXPERTS in quantized.step:
        word = "depends on the kernel of the experts: at its roofline"
    elif speedup > 1 + UNCERTAINTY:
        word = "pays:"
    elif speedup > 1 / (1 + UNCERTAINTY):
        word = f"may pay or not, measure it; within the {UNCERTAINTY:.0%} that this estimate is uncertain:"
    else:
        word = "does not pay:"
    return f"{name} {word} {speedup:.2f} times the tokens/s of bf16. {reason(base, quantized, workload)}"


def reason(base: Rollout, quantized: Rollout, workload: Workload) -> str:
    """One sentence: what shrinks, by how much, and what does not."""
    products = (steps.MATRICES, steps.EXPERTS)
    before, after = base.shares(workload), quantized.shares(workload)
    share = sum(before.get(part, 0) for part in products)
    gain = share * base.seconds / sum(quantized.seconds * after.get(part, 0) for part in products)
    rest = max((part for part in after if part not in (*products, steps.QUANTIZATION)), key=after.get)
    moved = sum(base.step_bytes.values())
    operands = sum(base.step_bytes.get(part, 0) for part in products) / moved
    cache = base.step_bytes[steps.ATTENTION] / moved
    bound = "compute" if any(part in base.compute_bound for part in products) else "memory"
    sentence = (
        f"The products that it quantizes take {share:.0%} of the bf16 time (decoding is {bound}-bound there; they move "
        f"{operands:.0%} of a step's bytes, attention {cache:.0%}) and become {gain:.2f} times as fast, while the rest "
        f"does not, above all {rest} ({after[rest]:.0%} of the {quantized.scheme} time), and quantizing activations "
        f"takes {after[steps.QUANTIZATION]:.0%}"
    )
    if quantized.concurrent > base.concurrent:
        sentence += f"; smaller weights leave room for {quantized.concurrent} sequences, not {base.concurrent}"
    return sentence + "."


def about_experts(speedup: float | None) -> list[str]:
    """What vLLM's int8 experts and ours reached on the H200, and what that would make of the expected speedup."""
    theirs, ours = experts.reached(), experts.reached(experts.OURS)
    lines = [
        "vLLM 0.23's int8 experts stay far behind their roofline: Qwen3-30B-A3B on an H200, int8 / bf16: "
        f"{_seen(theirs)}. With ascend-quant's experts for NVIDIA GPUs: {_seen(ours)}."
    ]
    if speedup is not None:
        reached = [speedup * measured / expected for measured, expected in theirs.values()]
        lines.append(
            f"With vLLM's fraction here, int8 / bf16 is {min(reached):.2f} to {max(reached):.2f}, not {speedup:.2f}; "
            "NPUs run other kernels, which this project has not measured."
        )
    return lines


def _seen(reached: Mapping[int, tuple[float, float]]) -> str:
    return ", ".join(
        f"{measured:.2f} at batch {batch} where {expected:.2f} was to be expected ({measured / expected:.2f} of it)"
        for batch, (measured, expected) in reached.items()
    )


def against_measured(rollouts: Mapping[str, Rollout], measured: Mapping[str, float | None]) -> list[str]:
    """The user's tokens/s, and their ratios, against the expected ones.

    Raises:
        AdviceError: a figure that is not positive, or of a scheme that has no estimate here.
    """
    given = {scheme: figure for scheme, figure in measured.items() if figure is not None}
    for scheme, figure in given.items():
        if scheme not in rollouts:
            raise AdviceError(f"--measured-{scheme}: there is no estimate for {scheme} to compare it with")
        if not 0 < figure < float("inf"):
            raise AdviceError(f"--measured-{scheme} must be a positive number, not {figure}")
    lines = []
    for scheme, figure in given.items():
        expected = rollouts[scheme].tokens_per_second
        lines.append(
            f"{scheme}: {figure:.0f} tokens/s measured, {figure / expected:.2f} of the expected {expected:.0f}."
        )
    for scheme in (quantized for quantized in given if quantized != "bf16" and "bf16" in given):
        speedup = given[scheme] / given["bf16"]
        expected = rollouts[scheme].tokens_per_second / rollouts["bf16"].tokens_per_second
        lines.append(
            f"{scheme} / bf16: {speedup:.2f} measured, {speedup / expected:.2f} of the {expected:.2f} "
            "that kernels at their roofline would give."
        )
    return lines
