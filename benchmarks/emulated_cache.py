"""An int8 KV cache for vLLM on a CPU, whose own attention has none: keys and values are rounded as they come.

    PYTHONPATH=$PWD/benchmarks/int8_cache ./run.sh demo --arms int8

Attention gets, in its own BF16, what the codes and scales of each token and head stand for
(`ascend_quant.oracle.cache`). BF16 rounds that once more, and a prompt attends to rounded keys of its own, neither of
which our kernels on GPUs do: what is seen here is no better than there. Keys are not balanced. Each process in which it
is at work says so in its log.
"""

import functools
import sys
from typing import Any

from benchmarks.stamping import Finder

MODULE = "vllm.model_executor.layers.attention.attention"
SAYS = "emulated: attention's keys and values are rounded to int8, with a scale a token and head"


def begin() -> None:
    """Round in this process, from vLLM's import on."""
    sys.meta_path.insert(0, Finder((MODULE,), lambda module: round_in(module.Attention)))


def round_in(attention: type) -> None:
    """Have vLLM's `Attention`, or a class like it, round its keys and values, (T, G * D) or (T, G, D).

    Args:
        attention: `forward(query, key, value, ..)`; `head_size` is D of keys, `head_size_v` of values.
    """
    from ascend_quant.mismatch.cache_rounding import int8  # torch, which most processes of a run do without

    forward = attention.forward

    @functools.wraps(forward)
    def rounded(self: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        given = ((key, self.head_size), (value, self.head_size_v))
        kept = [int8(x.reshape(-1, size)).to(x.dtype).view(x.shape) for x, size in given]
        return forward(self, query, *kept, *args, **kwargs)

    attention.forward = rounded
    print(SAYS, file=sys.stderr, flush=True)
