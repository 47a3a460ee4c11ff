"""Where the GPU's time goes in a decode step: kernels as they ran, put under the model's operations.

Kernels in a captured graph keep no names of layers. Matrix products are told apart by their order: a layer has the
same ones in the same order, and the language-model head comes last; what runs behind it samples.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.models import Model

PRODUCTS = ("qkv", "o", "gate_up", "down")
PRODUCTS_WITH_EXPERTS = ("qkv", "o", "router")
HEAD = "lm_head"
KINDS = (  # the first that fits
    ("experts: products", r"fused_moe_kernel|^(gate_up|down)$|grouped"),
    ("experts: routing", r"topk|moe_align|count_and_sort|moe_sum|^(prepare|combine|count|sort)\w*$"),
    ("norm or activation with quantization", r"norm_rows|silu_rows"),
    ("attention", r"flash|fmha|attention|attn|prepare_varlen|reshape_and_cache|combine"),
    ("attention", r"^(plan_shares|attend_shares|merge_parts|attend_chunks|write_tokens)$"),  # over our int8 cache
    ("quantization", r"triton_(red|per|poi|for)_.*(quant|scaled_mm)"),  # Inductor names the ops around it too
    ("product", r"gemm|nvjet|cutlass|scaled_mm|int8_product|router_tiles|linear|splitKreduce|wgmma|xmma|gemv"),
    ("quantization", r"quant"),
    ("activation", r"act_and_mul|silu"),
    ("norm and other fused", r"triton_(red|per|poi|for|tem)_|norm"),
)
HELPS = re.compile(r"splitKreduce|reduce_partials")  # belongs to the product before it


class Kernel(NamedTuple):
    """One run of a kernel; times in microseconds."""

    name: str
    start: float
    duration: float


class Recorder:
    """Records every kernel, copy and fill of this process's GPU, from now on."""

    def __init__(self) -> None:
        torch.cuda.synchronize()
        self.profiler = profile(activities=[ProfilerActivity.CUDA])
        self.profiler.start()

    def stop(self) -> list[Kernel]:
        """What has run, by its start."""
        torch.cuda.synchronize()
        self.profiler.stop()
        events = self.profiler.profiler.kineto_results.events()
        on_device = (event for event in events if event.device_type() == torch.autograd.DeviceType.CUDA)
        kernels = (Kernel(event.name(), event.start_ns() / 1e3, event.duration_ns() / 1e3) for event in on_device)
        return sorted(kernels, key=lambda kernel: kernel.start)


def kind_of(name: str) -> str:
    """Of a kernel, by its name."""
    return next((kind for kind, words in KINDS if re.search(words, name, re.IGNORECASE)), "other")


class Share(NamedTuple):
    """What an operation, or a kernel, takes of a step.

    Attributes:
        us: microseconds by which it prolongs a step: what runs beside the kernel before is not counted.
        count: kernels a step.
    """

    us: float
    count: float


@dataclass(frozen=True)
class Trace:
    """Whole decode steps: from behind one language-model head to the next, some steps later.

    Attributes:
        kernels: by their start.
        names: of the operation that each belongs to.
        steps: how many.
    """

    kernels: Sequence[Kernel]
    names: Sequence[str]
    steps: int

    @classmethod
    def of(cls, columns: Sequence[Sequence], model: Model) -> "Trace":
        """From names, starts and durations; products keep no place if they are not those of the model's steps.

        Raises:
            ValueError: fewer than two steps.
        """
        kernels = [Kernel(*fields) for fields in zip(*columns, strict=True)]
        order = [*(PRODUCTS_WITH_EXPERTS if model.experts else PRODUCTS) * model.layers, HEAD]
        heads = _heads(kernels, len(order))
        if len(heads) < 2:
            often = Counter(kernel.name[:80] for kernel in kernels if _is_product(kernel)).most_common(8)
            raise ValueError(
                f"{model.name}: no two language-model heads among {len(kernels)} kernels; products: {often}"
            )
        inside = kernels[heads[0] + 1 : heads[-1] + 1]
        known = all(_products(kernels[first + 1 : last + 1]) == len(order) for first, last in pairwise(heads))
        names = _named(inside, order) if known else [kind_of(kernel.name) for kernel in inside]
        return cls(inside, names, len(heads) - 1)

    def shares(self) -> dict[str, Share]:
        """Each operation's, the longest first."""
        return self._summed(self.names)

    def by_name(self) -> dict[str, Share]:
        """Each kernel's, the longest first."""
        return self._summed([kernel.name for kernel in self.kernels])

    def _summed(self, names: Sequence[str]) -> dict[str, Share]:
        taken: dict[str, list[float]] = defaultdict(list)
        for name, added in zip(names, self._added(), strict=True):
            taken[name].append(added)
        longest = sorted(taken.items(), key=lambda item: -sum(item[1]))
        return {name: Share(sum(times) / self.steps, len(times) / self.steps) for name, times in longest}

    def busy_us(self) -> float:
        """Microseconds of a step in which at least one kernel runs."""
        return sum(self._added()) / self.steps

    def _added(self) -> Iterator[float]:
        """For each kernel, the microseconds that it runs on behind those before it; some start early and wait."""
        until = float("-inf")
        for kernel in self.kernels:
            end = kernel.start + kernel.duration
            yield max(0.0, end - max(kernel.start, until))
            until = max(until, end)


def _heads(kernels: Sequence[Kernel], each: int) -> list[int]:
    """Where the language-model heads are, if a step has so many products: a product that runs once a step."""
    products = [kernel.name for kernel in kernels if _is_product(kernel)]
    runs = Counter(products)
    once = [name for name, count in runs.items() if abs(count - len(products) / each) <= 1]
    rarest = min(once, key=lambda name: abs(runs[name] - len(products) / each), default=None)
    return [i for i, kernel in enumerate(kernels) if kernel.name == rarest and _is_product(kernel)]


def _products(kernels: Sequence[Kernel]) -> int:
    return sum(map(_is_product, kernels))


def _is_product(kernel: Kernel) -> bool:
    return kind_of(kernel.name) == "product" and not HELPS.search(kernel.name)


def _named(kernels: Sequence[Kernel], order: Sequence[str]) -> list[str]:
    """The operation of each kernel of whole steps."""
    names, products, last = [], 0, HEAD
    for kernel in kernels:
        name = kind_of(kernel.name)
        if _is_product(kernel):
            last = order[products % len(order)]
            products += 1
        if name == "product":
            name = f"product: {last}"
        elif last == HEAD and name in ("other", "norm and other fused"):
            name = "sampling and bookkeeping"  # and the next step's embedding and first norm
        names.append(name)
    return names
