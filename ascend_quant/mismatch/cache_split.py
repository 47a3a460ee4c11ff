"""`mismatch --kv-cache`: the KL between the BF16 policy and a rollout's, split into what it comes from.

The BF16 engine sampled; its log-probabilities are the reference. Every other engine decodes the same tokens, forced
(forcing.py), so that what it read from its cache was written by decoding, as in a rollout. All figures are
KL(bf16 || other) a token, k3, by position (positions.py):

    noise    the BF16 engine itself, the same tokens scored as a prompt
    kernel   BF16 weights and cache, by the attention kernels of the quantized cache, where these are others
    cache    BF16 weights, quantized cache
    weights  quantized weights, BF16 cache
    both     quantized weights, quantized cache

Where the engine here has no such cache, `cache` is emulated (emulated_cache.py), in float32 and thus without the noise,
and `both` is not known.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from ascend_quant.mismatch.engines import Task
from ascend_quant.mismatch.positions import by_position

PARTS = ("noise", "kernel", "cache", "weights", "both")
KERNELS = {"int8": {"attention_backend": "TRITON_ATTN"}}  # vLLM's own, nearest to ours, with a BF16 cache; CUDA's
EXTENSION = "ascend_quant.mismatch.cache_scales.Extension"
FORCING = "ascend_quant.mismatch.forcing:Forced"  # as vLLM names a class


@dataclass(frozen=True)
class Part:
    """One engine's policy beside the reference.

    Attributes:
        name: one of PARTS.
        about: the engine, in words.
        emulated: by transformers, not by an engine.
        buckets: see positions.py; the first holds all positions.
        logprobs: what it gave each token.
        scales: of an fp8 cache, of each layer's keys and values; None where a cache has none of a whole layer.
        balance: of an int8 cache's keys, see `refit.key_balance.told`; emulated, with the KL that it would have
            without, as `k3_kl_without`.
    """

    name: str
    about: str
    emulated: bool
    buckets: list[dict[str, Any]]
    logprobs: list[list[float]]
    scales: list[tuple[float, float]] | None = None
    balance: dict[str, Any] | None = None


def split(
    own: dict[str, Any],
    cache: str,
    scheme: str | None,
    edges: tuple[int, ...],
    threshold: float,
    run: Callable[[str, Task], dict],
    engine: Callable[[str, str], dict[str, Any]],
    emulated: Task | None,
    cuda: bool,
) -> dict[str, Any]:
    """All parts, as the report has them.

    Args:
        own: what the BF16 engine `sampled`, and what it `scored` of it.
        scheme: of the weights; None where they stay BF16.
        run: carries out a task that has a name.
        engine: vLLM's options for a scheme and a cache.
        emulated: the task that emulates the cache; None where the engine has it.
        cuda: whether engines run on an NVIDIA GPU.
    """
    sampled = own["sampled"]

    def part(name: str, about: str, logprobs: list[list[float]], reference: list[list[float]] | None = None) -> Part:
        vectors = [
            [torch.tensor(one, dtype=torch.float64) for one in policy]
            for policy in (reference or [one["logprobs"] for one in sampled], logprobs)
        ]
        prompts = [len(one["prompt"]) for one in sampled]
        buckets = by_position(prompts, *vectors, edges=edges, threshold=threshold)
        return Part(name, about, reference is not None, [asdict(bucket) for bucket in buckets], logprobs)

    parts = [part("noise", "bf16, scored as a prompt", own["scored"])]
    for name, about, options in engines(cache, scheme, engine, emulated is not None, cuda):
        found = run(f"{name} ({about})", Task("force", options, [], {}, sampled))
        has_cache = name in ("cache", "both")
        scales = found["scales"] if cache == "fp8" and has_cache else None
        balance = found["balance"] if cache == "int8" and has_cache else None
        parts.append(replace(part(name, about, found["forced"]), scales=scales, balance=balance))
    if emulated is not None:
        found = run(f"cache ({cache}, emulated)", emulated)
        about = f"bf16 weights, {cache} cache, emulated in float32"
        balance = found["balance"]
        if "unbalanced" in found:
            without = part("cache", about, found["unbalanced"], found["exact"])
            balance = {**balance, "k3_kl_without": without.buckets[0]["k3_kl"]}
        parts.append(replace(part("cache", about, found["rounded"], found["exact"]), balance=balance))
    parts.sort(key=lambda one: PARTS.index(one.name))
    return {"kv_cache": cache, "edges": list(edges), "parts": [asdict(one) for one in parts]}


def engines(
    cache: str, scheme: str | None, engine: Callable[[str, str], dict[str, Any]], emulated: bool, cuda: bool
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The parts that engines give: their names, the engines in words, vLLM's options."""
    # one step after the other: which token is next is told by those that were written
    forced = {"logits_processors": [FORCING], "worker_extension_cls": EXTENSION, "async_scheduling": False}
    if cuda and not emulated and cache in KERNELS:
        about = f"bf16, by {KERNELS[cache]['attention_backend']}"
        yield "kernel", about, engine("bf16", "auto") | KERNELS[cache] | forced
    if not emulated:
        yield "cache", f"bf16 weights, {cache} cache", engine("bf16", cache) | forced
    if scheme is not None:
        yield "weights", f"{scheme} weights, bf16 cache", engine(scheme, "auto") | forced
        if not emulated:
            yield "both", f"{scheme} weights, {cache} cache", engine(scheme, cache) | forced
