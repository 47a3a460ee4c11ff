"""What follows from the report's figures, in sentences."""

import json
from collections.abc import Iterator
from typing import Any

from ascend_quant.mismatch.cache_verdict import verdict

NEAR = 3.0  # times the noise floor
MIB = 1 << 20
SHOWN = 8  # of channels or experts


def remarks(report: dict[str, Any]) -> Iterator[str]:
    """Sentences on the report of `measure.measure`, for people."""
    found, noise = report["mismatch"]["k3_kl"], report["noise"]["k3_kl"]
    if noise > 0:
        yield f"KL (k3) is {found / noise:.3g} times the noise floor: {found:.3g} to {noise:.3g}."
    yield more_prompts(report["mismatch"])
    if report["prompts_left_out"]:
        yield f"{report['prompts_left_out']} prompts were left out (--tokens {report['tokens']})."
    if report["at_length"]:
        yield from at_length(report["at_length"], report["threshold"])
    if report["layers"]:
        yield from blame(report)
    if report["cache"]:
        yield from verdict(report["cache"])
    if report["layers"] and report["profile"]:
        yield "The layers' errors are the scheme's own, without the profile's factors."


def more_prompts(figures: dict[str, Any]) -> str:
    """How many bring the KL's standard error to a tenth of it."""
    more = figures["more_prompts"]
    if more is None:
        return "Standard errors need two sequences at least, and a KL above 0: how many more prompts is not known."
    now = figures["standard_errors"]["k3_kl"] / figures["k3_kl"]
    wanted = f"{more} more prompts like these would make it 10 %" if more else "no more prompts are needed for 10 %"
    return f"The KL's (k3) relative standard error is {now:.0%} over {figures['sequences']} sequences; {wanted}."


def at_length(found: dict[str, Any], threshold: float) -> Iterator[str]:
    """What importance weights leave at a recipe's length, and what that takes for granted."""
    for level in ("token", "sequence"):
        one = found[level]
        yield (
            f"At {found['length']} tokens, a weight for each {level}, cut at {threshold:g}: effective sample size "
            f"{one['ess']:.3g}, clipped {one['clipped']:.2%}, mean {one['mean']:.3g}."
        )
    yield (
        f"  Taken for granted: tokens are independent and as here, log ratios of mean {-found['kl']:.3g} (-k3) and "
        f"variance {found['variance']:.3g}; a sequence's sum is normal."
    )
    if found["spread"] is not None:
        yield f"  Here sequences' sums vary {found['spread']:.2g} times as much as those of independent tokens would."


def blame(report: dict[str, Any]) -> Iterator[str]:
    """The culprits, what to ignore, and what that gave."""
    for culprit in report["culprits"]:
        yield sentence(culprit, report)
    suggestion = report["suggested_ignore"]
    if suggestion["ignore"]:
        share, cost = suggestion["share"], suggestion["extra_bytes"] / MIB
        yield f"Suggested ignore ({share:.0%} of all squared error, {cost:.3g} MiB more in BF16):"
        yield json.dumps(suggestion["ignore"])
        yield tried(report)
    elif report["culprits"]:
        yield "No layer to ignore would help: see what is to blame."
    elif report["mismatch"]["k3_kl"] <= NEAR * report["noise"]["k3_kl"]:
        yield "No layer stands out and the KL is near the noise: nothing to ignore."
    else:
        yield "No single layer stands out: the KL is that of the scheme, spread over all layers."


def sentence(culprit: dict[str, Any], report: dict[str, Any]) -> str:
    """Which part is to blame, and why."""
    times, channels = culprit["times"], _some("channels", culprit["channels"])
    layers = f"{len(culprit['layers'])} layers" if len(culprit["layers"]) > 1 else "one layer"
    gaussian = f"{times:.3g} times the error that {report['scheme']} gives a Gaussian layer of that shape"
    where = f" ({channels} lie out)" if channels else ""
    return (
        "To blame: "
        + {
            "model": f"the whole model: most layers of all kinds, {gaussian} (median). Another scheme may do better.",
            "kind": f"all layers of kind {culprit['name']}: {gaussian} (median){where}.",
            "layer": f"layer {culprit['name']}: {gaussian}{where}.",
            "expert": f"{_some('expert', culprit['experts'])} of {culprit['name']}: {gaussian}{where}.",
            "channels": f"{channels}, in {layers} from {culprit['name']} on: they make all others {times:.3g} times as "
            "coarse.",
            "embedding": f"the embedding {culprit['name']}, {channels}: {times:.3g} times as large as all others, "
            f"which are coarser for it in {layers} that read them.",
            "head": f"the head {culprit['name']}, {channels}: they carry the logits, and enlarge an error {times:.3g} "
            "times.",
        }[culprit["what"]]
    )


def tried(report: dict[str, Any]) -> str:
    """The KL with the suggestion beside the KL without it."""
    found = report["with_suggestion"]
    if found is None:
        return "It was not tried (--no-try-suggestion)."
    return (
        f"Tried: KL (k3) {_figure(found)} with it, {_figure(report['mismatch'])} without, noise "
        f"{report['noise']['k3_kl']:.3g}; {found['sequences']} sequences that the BF16 engine sampled, "
        f"{found['seconds']:.0f} s."
    )


def _figure(figures: dict[str, Any]) -> str:
    errors = figures["standard_errors"]
    return f"{figures['k3_kl']:.3g}" + (f" ± {errors['k3_kl']:.1g}" if errors else "")


def _some(what: str, numbers: list[int]) -> str:
    if not numbers:
        return ""
    more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
    return f"{what} {', '.join(map(str, numbers[:SHOWN]))}{more}"
