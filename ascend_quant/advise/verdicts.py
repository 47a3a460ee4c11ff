"""What follows from the rollouts of all schemes: speedups, the reason, and how far measured figures are from them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ascend_quant.advise import AdviceError, steps
from ascend_quant.advise.caches import OF_THE_PLUGIN, caches, no_quantized_cache
from ascend_quant.advise.contexts import AtContext, at_contexts
from ascend_quant.advise.devices import SCHEMES, Device
from ascend_quant.advise.engines import Engine
from ascend_quant.advise.memory import DoesNotFit
from ascend_quant.advise.rollouts import Rollout, rollout
from ascend_quant.advise.roofline import FLOPS
from ascend_quant.advise.serving import Serving, servings
from ascend_quant.advise.shapes import Shape
from ascend_quant.advise.workloads import Workload

# How far speedups are from measured ones: at most 12 % in all of benchmarks/results, on H200s (test_advise_results.py).
UNCERTAINTY = 0.12
PRODUCTS = (steps.MATRICES, steps.EXPERTS)


@dataclass(frozen=True)
class Advice:
    """All that is said about one workload.

    Attributes:
        rollouts: by scheme and cache.
        absent: why there is none of a scheme, or of a cache.
        contexts: of each, a decode step by the tokens that sequences hold.
        speedups: tokens/s of each, of BF16's; empty where BF16 does not fit.
        verdicts: a sentence or two on each quantized scheme, and on this plugin's quantized caches.
        measured: the user's figures against the expected ones.
    """

    rollouts: dict[str, Rollout]
    absent: dict[str, str]
    contexts: dict[str, list[AtContext]]
    speedups: dict[str, float]
    verdicts: dict[str, str]
    measured: list[str]


def advise(shape: Shape, device: Device, workload: Workload, measured: Mapping[str, float | None]) -> Advice:
    """Estimate every scheme with every cache, and compare.

    Args:
        measured: the user's own tokens/s by scheme, or None.

    Raises:
        AdviceError: no scheme fits, or a measured figure has nothing to be compared with.
    """
    rollouts, absent, served, contexts = {}, {}, {}, {}
    for scheme in SCHEMES:
        if scheme not in device.rates:
            absent[scheme] = f"{device.name} has no {scheme} units"
    for serving in servings(device):
        for cache in caches(serving, device, shape):
            engine = Engine(shape, serving, device, cache, workload.tp, workload.dp, workload.expert_parallel)
            try:
                rollouts[engine.name] = rollout(engine, workload)
            except DoesNotFit as error:
                absent[engine.name] = str(error)
            else:
                served[engine.name] = serving
                contexts[engine.name] = at_contexts(engine, workload, rollouts[engine.name].memory)
    if not rollouts:
        raise AdviceError("; ".join(absent.values()))
    absent |= {f"{name} cache": why for name, why in no_quantized_cache(device, shape).items()}
    base = rollouts.get("bf16")
    speedups = (
        {n: r.tokens_per_second / base.tokens_per_second for n, r in rollouts.items() if n != "bf16"} if base else {}
    )
    quantized = [name for name, serving in served.items() if serving.scheme == name != "bf16"]
    return Advice(
        rollouts=rollouts,
        absent=absent,
        contexts=contexts,
        speedups=speedups,
        verdicts={
            **{name: verdict(base, rollouts[name], served[name], device, workload) for name in quantized},
            **dict(cache_verdicts(rollouts, served, workload)),
        },
        measured=against_measured(rollouts, measured),
    )


def verdict(base: Rollout | None, quantized: Rollout, serving: Serving, device: Device, workload: Workload) -> str:
    """Whether it pays, and why."""
    name = quantized.name
    if base is None:
        return f"{name} fits, where bf16 does not."
    if workload.eager and workload.launch is None:
        return no_verdict(name, quantized)
    speedup = quantized.tokens_per_second / base.tokens_per_second
    if speedup > 1 + UNCERTAINTY:
        word = "pays:"
    elif speedup > 1 / (1 + UNCERTAINTY):
        word = f"may pay or not, measure it; within the {UNCERTAINTY:.0%} that this estimate is uncertain:"
    else:
        word = "does not pay:"
    unseen = "" if serving.measured else f" Nobody has measured {serving.kernels} kernels on an {device.name} here."
    return f"{name} {word} {speedup:.2f} times the tokens/s of bf16. {reason(base, quantized)}{unseen}"


def cache_verdicts(
    rollouts: Mapping[str, Rollout], served: Mapping[str, Serving], workload: Workload
) -> Iterator[tuple[str, str]]:
    """What a quantized cache gives beside the BF16 cache of the same weights; of this plugin's engines."""
    for name, each in rollouts.items():
        serving = served[name]
        plain = rollouts.get(serving.name)
        if name == serving.name or plain is None or serving.name not in OF_THE_PLUGIN:
            continue
        fits = f"{each.memory.fits * workload.dp} sequences fit, not {plain.memory.fits * workload.dp}"
        waves = (
            f"waves: {each.waves}, not {plain.waves}" if each.waves != plain.waves else f"waves: {each.waves}, as many"
        )
        if workload.eager and workload.launch is None:
            yield name, f"{name}: {fits}; {waves}."
            continue
        gain = each.tokens_per_second / plain.tokens_per_second
        yield (
            name,
            f"{name}: {gain:.2f} times the tokens/s of {serving.name} with a BF16 cache; {fits}; {waves}.",
        )


def no_verdict(name: str, quantized: Rollout) -> str:
    """Of an engine without graphs, whose host nobody has measured."""
    busy = quantized.step.seconds - quantized.step.parts[steps.HOST]
    most = busy / quantized.step.kernels
    return (
        f"{name}: no verdict without graphs. The host starts some {quantized.step.kernels:.0f} kernels a decode step "
        f"one by one, and how long one takes was not measured here. The device is busy for {busy * 1e3:.1f} ms: from "
        f"{most * 1e6:.0f} us a kernel on, the host bounds the step and {name} gains nothing more. Measure it and give "
        "--launch-us, or let the engine capture graphs."
    )


def reason(base: Rollout, quantized: Rollout) -> str:
    """One sentence: what shrinks, by how much, and what does not."""
    before, after = base.shares(), quantized.shares()
    share = sum(before.get(part, 0) for part in PRODUCTS)
    gain = share * base.seconds / sum(quantized.seconds * after.get(part, 0) for part in PRODUCTS)
    rest = max((part for part in after if part not in (*PRODUCTS, steps.QUANTIZATION)), key=after.get)
    moved = sum(base.step.moved.values())
    operands = sum(base.step.moved.get(part, 0) for part in PRODUCTS) / moved
    cache = base.step.moved[steps.ATTENTION] / moved
    bound = "compute" if base.step.bound == FLOPS else "memory"
    sentence = (
        f"The products that it quantizes take {share:.0%} of the bf16 time (decoding is {bound}-bound there; they move "
        f"{operands:.0%} of a step's bytes, attention {cache:.0%}) and become {gain:.2f} times as fast, while the rest "
        f"does not, above all {rest} ({after[rest]:.0%} of the {quantized.name} time), and quantizing activations "
        f"takes {after[steps.QUANTIZATION]:.0%}"
    )
    if quantized.concurrent > base.concurrent:
        sentence += f"; smaller weights leave room for {quantized.concurrent} sequences, not {base.concurrent}"
    return sentence + "."


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
            f"{scheme} / bf16: {speedup:.2f} measured, {speedup / expected:.2f} of the expected {expected:.2f}."
        )
    return lines
