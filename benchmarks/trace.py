"""Where the GPU's time goes in a decode step: kernels as they ran, put under the model's operations.

Kernels in a captured graph keep no names of layers. Matrix products are told apart by their order: a layer has the
same ones in the same order, and the language-model head comes last; what runs behind it samples.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.models import Model

PRODUCTS = ("qkv", "o", "gate_up", "down")
PRODUCTS_WITH_EXPERTS = ("qkv", "o", "router")
HEAD = "lm_head"
KINDS = (  # the first that fits
    ("experts: products", r"fused_moe_kernel|experts_product|grouped_product|gate_up_product|down_product"),
    ("experts: routing", r"topk|moe_align|count_and_sort|moe_sum|route|sorted"),
    ("attention", r"flash|fmha|attention|attn|prepare_varlen|reshape_and_cache|combine"),
    ("quantization", r"quant"),
    ("activation", r"act_and_mul|silu"),
    ("product", r"gemm|nvjet|cutlass|scaled_mm|int8_product|splitKreduce|wgmma|xmma|_scaled_product|gemv"),
    ("rotary embedding", r"rotary|rope"),
    ("norm and other fused", r"triton_(red|per|poi|for|tem)_|norm"),
)
HELPS = re.compile(r"splitKreduce|split_k_reduce|reduce_partials")  # belongs to the product before it


class Kernel(NamedTuple):
    """One run of a kernel; times in microseconds."""

    name: str
    start: float
    duration: float


def kernels_of(call: Callable[[], object]) -> list[Kernel]:
    """Every kernel, copy and fill that the call makes the GPU run, by their start."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        wait()
    events = profiler.profiler.kineto_results.events()
    on_device = (event for event in events if event.device_type() == torch.autograd.DeviceType.CUDA)
    kernels = (Kernel(event.name(), event.start_ns() / 1e3, event.duration_ns() / 1e3) for event in on_device)
    return sorted(kernels, key=lambda kernel: kernel.start)


def wait() -> None:
    """Until the GPU has done what it was asked for."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def kind_of(name: str) -> str:
    """Of a kernel, by its name."""
    return next((kind for kind, words in KINDS if re.search(words, name, re.IGNORECASE)), "other")


class Share(NamedTuple):
    """What one operation takes of a step.

    Attributes:
        us: microseconds a step, of all its kernels.
        count: kernels a step.
    """

    us: float
    count: float


def by_name(kernels: Sequence[Kernel], steps: int) -> dict[str, Share]:
    """Each kernel's share of a step, the longest first."""
    taken: dict[str, list[float]] = defaultdict(list)
    for kernel in kernels:
        taken[kernel.name].append(kernel.duration)
    longest = sorted(taken.items(), key=lambda item: -sum(item[1]))
    return {name: Share(sum(times) / steps, len(times) / steps) for name, times in longest}


def shares(kernels: Sequence[Kernel], model: Model, steps: int) -> dict[str, Share]:
    """Each operation's share of a step; products by their place in the model, if their number is as expected."""
    names = [kind_of(kernel.name) for kernel in kernels]
    products = [i for i, (kernel, name) in enumerate(zip(kernels, names, strict=True)) if _is_product(kernel, name)]
    order = PRODUCTS_WITH_EXPERTS if model.experts else PRODUCTS
    places = [*order * model.layers, HEAD]
    if len(products) == steps * len(places):
        for place, i in zip(places * steps, products, strict=True):
            names[i] = f"product: {place}"
        _name_helpers(kernels, names)
        _name_sampling(names)
    named = (kernel._replace(name=name) for kernel, name in zip(kernels, names, strict=True))
    return by_name(list(named), steps)


def _is_product(kernel: Kernel, name: str) -> bool:
    return name == "product" and not HELPS.search(kernel.name)


def _name_helpers(kernels: Sequence[Kernel], names: list[str]) -> None:
    last = ""
    for i, kernel in enumerate(kernels):
        if names[i].startswith("product: "):
            last = names[i]
        elif HELPS.search(kernel.name) and last:
            names[i] = last


def _name_sampling(names: list[str]) -> None:
    """From a step's head to the next step's first product, but for what a layer alone has."""
    behind = False
    for i, name in enumerate(names):
        if name.startswith("product: "):
            behind = name.endswith(HEAD)
        elif behind and name in ("other", "norm and other fused"):
            names[i] = "sampling and bookkeeping"


def busy(kernels: Sequence[Kernel]) -> float:
    """Microseconds in which at least one kernel ran."""
    total, until = 0.0, float("-inf")
    for kernel in kernels:
        end = kernel.start + kernel.duration
        total += max(0.0, end - max(kernel.start, until))
        until = max(until, end)
    return total
