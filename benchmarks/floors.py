"""The least time that a GPU needs for the operations of a decode step: bytes to read, products to make.

    product (M, K) x (N, K):  max(bytes of weight, activations and result / copy rate, 2 M N K / matrix rate)
    attention:                keys and values of every token so far / copy rate
    experts:                  the weights of those that at least one token chooses, on average, as above
The rates are those that this GPU reached in the same run: a plain copy, and a product of large square matrices.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from benchmarks.caches import head_bytes
from benchmarks.models import Model

COPIED = 1 << 30  # bytes
SIDE = 8192  # of the square matrices
REPEATS = 8
BF16, CODE = 2, 1  # bytes


class Rates(NamedTuple):
    """What a GPU reaches: bytes a second of a copy (read and written ones counted), BF16 operations a second."""

    copy: float
    bf16: float

    @property
    def codes(self) -> float:
        """Operations a second with 8 bits: tensor cores make twice as many."""
        return 2 * self.bf16


def measured_rates() -> Rates:
    """Of the current GPU, with random numbers."""
    source, target = (torch.empty(COPIED, dtype=torch.int8, device="cuda") for _ in range(2))
    copy = 2 * COPIED / _seconds(lambda: target.copy_(source))
    a, b = (torch.randn(SIDE, SIDE, device="cuda").bfloat16() for _ in range(2))
    bf16 = 2 * SIDE**3 / _seconds(lambda: a @ b.t())
    torch.cuda.empty_cache()
    return Rates(copy, bf16)


def _seconds(call) -> float:
    call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(REPEATS):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / REPEATS


def floors(
    model: Model, scheme: str, batch: int, context: float, rates: Rates, cache: str = "auto"
) -> dict[str, float]:
    """Microseconds a step, by the names of `trace.shares`; the operations that move next to nothing are left out.

    Args:
        scheme: "bf16", or one whose codes have 8 bits.
        context: tokens so far, of each of the batch, in the mean.
        cache: what keys and values are kept in (caches.py).
    """
    size, rate = (BF16, rates.bf16) if scheme == "bf16" else (CODE, rates.codes)
    kept = ("router", "lm_head")  # never quantized

    def product(name: str, rows: int, columns: int) -> float:
        bytes_each, operations = (BF16, rates.bf16) if name in kept else (size, rate)
        moved = rows * columns * bytes_each + batch * (columns * bytes_each + rows * BF16)
        return max(moved / rates.copy, 2 * batch * rows * columns / operations)

    times = {f"product: {name}": 1e6 * count * product(name, n, k) for name, count, n, k in products(model)}
    cached = 2 * model.layers * model.kv_heads * head_bytes(cache, model.head_dim)
    times["attention"] = 1e6 * batch * context * cached / rates.copy
    if model.experts:
        weights = 3 * model.hidden * model.expert_width
        chosen = model.experts * (1 - (1 - model.top_k / model.experts) ** batch)
        operations = 2 * batch * model.top_k * weights / rate
        times["experts: products"] = 1e6 * model.layers * max(chosen * weights * size / rates.copy, operations)
    return times


def products(model: Model) -> Iterator[tuple[str, int, int, int]]:
    """Name, how often a step, N and K of each matrix product outside the experts."""
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    yield "qkv", model.layers, q + 2 * kv, model.hidden
    yield "o", model.layers, model.hidden, q
    if model.experts:
        yield "router", model.layers, model.experts, model.hidden
    else:
        yield "gate_up", model.layers, 2 * model.width, model.hidden
        yield "down", model.layers, model.hidden, model.width
    yield "lm_head", 1, model.vocab, model.hidden
