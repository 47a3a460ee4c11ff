"""Which part of the KL is the largest, whether it grows with the position, and what to do about it."""

from collections.abc import Iterator
from typing import Any

NEAR = 3.0  # times the noise: below that a part is not told from it
GROWS = 3.0  # times the KL of the first positions
COUNTED = ("kernel", "cache", "weights")
FEWEST = 64  # tokens in a bucket that is compared with another


def all_positions(split: dict[str, Any]) -> dict[str, float]:
    """The KL of each part, over all tokens."""
    return {part["name"]: part["buckets"][0]["k3_kl"] for part in split["parts"]}


def above_noise(split: dict[str, Any]) -> dict[str, float]:
    """What each counted part has beyond the noise; an emulated one has none in it.

    The engine with the quantized cache has its kernel too, where this is another one: the kernel's part is taken off.
    """
    kl = all_positions(split)
    emulated = {part["name"] for part in split["parts"] if part["emulated"]}
    below = {"kernel": kl["noise"], "cache": kl.get("kernel", kl["noise"]), "weights": kl["noise"]}
    below |= dict.fromkeys(emulated, 0.0)
    return {name: max(0.0, kl[name] - below[name]) for name in COUNTED if name in kl}


def dominant(split: dict[str, Any]) -> str:
    """The part that most of it is; noise where no part is NEAR times as large."""
    parts, kl = above_noise(split), all_positions(split)
    name = max(parts, key=lambda part: parts[part])
    return name if kl[name] > NEAR * kl["noise"] and parts[name] > 0 else "noise"


def growing(part: dict[str, Any]) -> float | None:
    """The KL of the last range of positions over that of the first; None where there are not two to compare."""
    ranges = [bucket for bucket in part["buckets"][1:] if bucket["tokens"] >= FEWEST]
    if len(ranges) < 2 or not ranges[0]["k3_kl"]:
        return None
    return ranges[-1]["k3_kl"] / ranges[0]["k3_kl"]


def verdict(split: dict[str, Any]) -> Iterator[str]:
    """Sentences: the largest part, and what follows."""
    cache, parts, kl = split["kv_cache"], above_noise(split), all_positions(split)
    first = dominant(split)
    if first == "noise":
        yield (
            f"KV cache: no part of the KL is {NEAR:g} times the noise ({kl['noise']:.3g}): {cache} costs nothing that "
            "shows here."
        )
        yield from balance_of(split)
        return
    of = ", ".join(f"{name} {value:.3g}" for name, value in parts.items())
    yield f"KV cache: most of the KL comes from the {first} (a token, the noise of {kl['noise']:.3g} taken off: {of})."
    yield advice(first, cache, parts)
    yield from balance_of(split)
    for part in split["parts"]:
        times = growing(part) if part["name"] in COUNTED else None
        if times is not None and times > GROWS:
            yield (
                f"The {part['name']}'s part grows with the position: in the last range it is {times:.3g} times that of "
                "the first. Judge it at the length of your answers (--max-tokens)."
            )
    if "both" in kl and "weights" in parts and "cache" in parts:
        total = kl["noise"] + sum(parts.values())
        yield f"Together, as a rollout has them: {kl['both']:.3g}, where the parts and the noise add up to {total:.3g}."


def balance_of(split: dict[str, Any]) -> Iterator[str]:
    """Whether the keys' channels were balanced for an int8 cache, and what that did."""
    part = next(part for part in split["parts"] if part["name"] == "cache")
    balance = part.get("balance")
    if balance is None:
        return
    if balance["why_not"]:
        yield f"Balance of the keys: off, since {balance['why_not']}."
    elif not balance["balanced"]:
        yield f"Balance of the keys: on; by the weights none of {balance['pairs']} pairs of channels lies out."
    else:
        counts = f"{balance['balanced']} of {balance['pairs']} pairs of channels"
        yield f"Balance of the keys: on; {counts} lie out, and are divided by up to {balance['largest']:g}."
    if (without := balance.get("k3_kl_without")) is not None:
        kl = part["buckets"][0]["k3_kl"]
        heals = "heals" if kl < without else "does not heal"
        yield f"  Without it the cache's part would be {without:.3g}, with it {kl:.3g}: it {heals} the error of int8."


def advice(first: str, cache: str, parts: dict[str, float]) -> str:
    """What to do where that part is the largest."""
    if first == "weights":
        return (
            f"The {cache} cache costs less than the weights: it can stay on. To bring the KL down, look at the layers "
            "to blame, ignore some, or take a finer scheme."
        )
    if first == "kernel":
        return (
            "BF16 differs by itself between the two attention kernels: compare with that, not with the noise; a "
            "smaller share of it is the cache's."
        )
    if cache == "int8":
        other = (
            "keys may lie out in what their weights do not tell, or in many channels, which no balance of them heals"
        )
        cure = "try --kv-cache fp8, whose error is each channel's own"
    else:
        other = "e4m3 has three bits of a number, whatever its scale, and a scale too large or too small costs the rest"
        cure = "see that the scales are this step's, or try --kv-cache int8"
    costs = f", {parts['cache'] / parts['weights']:.2g} times the weights' part" if parts.get("weights") else ""
    return f"The {cache} cache is the largest part{costs}: {other}; {cure}; or leave it at auto for these lengths."
