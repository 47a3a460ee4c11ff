"""The operators of a layer's attention, of whichever kind: its norm, its products, its cache."""

from collections.abc import Iterator

from ascend_quant.advise.engines import Engine
from ascend_quant.advise.layers import AUTO, BF16, Attention, Latent, Linear, Mixer
from ascend_quant.advise.roofline import CACHE, Operator
from ascend_quant.advise.steps import ATTENTION, MATRICES, OTHER, Step, product

ATTENTION_KERNELS = 2  # one lays out the work or adds up the parts of a sequence; one attends
CHUNK = 64  # rows of a prompt that the gated delta rule takes at once (flash-linear-attention)


def operators(engine: Engine, mixer: Mixer, step: Step) -> Iterator[Operator]:
    """Of one layer on one device; `mixer` is its share."""
    hidden = engine.shape.hidden
    yield from engine.norm(step.rows, hidden)
    if isinstance(mixer, Attention):
        yield from _attention(engine, mixer, step, hidden)
    elif isinstance(mixer, Latent):
        yield from _latent(engine, mixer, step, hidden)
    else:
        yield from _linear(engine, mixer, step, hidden)


def _attention(engine: Engine, mine: Attention, step: Step, hidden: int) -> Iterator[Operator]:
    first, last = mine.matrices(hidden)
    q, kv = mine.heads * mine.head_dim, mine.kv_heads * mine.head_dim
    kept = mine.cached(1, engine.cache)
    yield product(MATRICES, engine.scheme, step.rows, first)
    yield Operator(OTHER, moved=step.rows * (q + kv) * BF16 * 2)  # rotation
    yield Operator(ATTENTION, cached=step.rows * kept, moved=step.rows * 2 * kv * BF16)  # written
    yield Operator(
        ATTENTION,
        cached=step.read(mine.window) * kept,
        moved=step.rows * 2 * q * BF16,
        operations=4 * step.rows * step.attended(mine.window) * q,
        kernels=ATTENTION_KERNELS,
        efficiency=CACHE,
    )
    if mine.gated:
        yield Operator(OTHER, moved=step.rows * q * BF16 * 3)
    yield from engine.quantized(step.rows, q)
    yield product(MATRICES, engine.scheme, step.rows, last)


def _latent(engine: Engine, mine: Latent, step: Step, hidden: int) -> Iterator[Operator]:
    """Prompts make keys and values of the latents; decoding attends to the latents themselves, with BF16 products."""
    *firsts, up, last = mine.matrices(hidden)
    latent, heads = mine.kv_rank + mine.rope, mine.heads
    for number, first in enumerate(firsts):
        if number:  # the queries' latent, normed
            yield from engine.norm(step.rows, first[0])
        yield product(MATRICES, engine.scheme, step.rows, first)
    yield Operator(OTHER, moved=step.rows * (heads * mine.rope + latent) * BF16 * 2)  # rotation, the latent's norm
    kept = mine.cached(1, engine.cache)
    yield Operator(ATTENTION, cached=step.rows * kept, moved=step.rows * latent * BF16)  # written
    seen = step.attended(None)
    if step.prompts:
        yield from engine.quantized(step.rows, mine.kv_rank)
        yield product(MATRICES, engine.scheme, step.rows, up)
        width = heads * (mine.nope + mine.rope + mine.value_dim)
        moved, cached, operations = step.rows * 2 * width * BF16, 0.0, 2 * step.rows * seen * width
    else:
        for width in (mine.nope, mine.value_dim):
            yield product(ATTENTION, "bf16", step.rows, (mine.kv_rank, width), copies=heads)
        moved, cached = step.rows * 2 * heads * latent * BF16, step.read(None) * kept
        operations = 2 * step.rows * seen * heads * (latent + mine.kv_rank)
    yield Operator(ATTENTION, 0, cached, moved, operations, kernels=ATTENTION_KERNELS, efficiency=CACHE)
    yield from engine.quantized(step.rows, heads * mine.value_dim)
    yield product(MATRICES, engine.scheme, step.rows, last)


def _linear(engine: Engine, mine: Linear, step: Step, hidden: int) -> Iterator[Operator]:
    """A token reads and writes the state once; of a prompt, a chunk does."""
    first, gates, last = mine.matrices(hidden)
    values, state = mine.value_heads * mine.value_dim, mine.key_dim * mine.value_dim
    yield product(MATRICES, engine.scheme, step.rows, first)
    yield product(MATRICES, engine.scheme, step.rows, gates)
    yield Operator(OTHER, moved=step.rows * mine.mixed * BF16 * 2)  # convolution
    within = CHUNK * (mine.key_dim + mine.value_dim) if step.prompts else 0
    yield Operator(
        ATTENTION,
        cached=2 * step.sequences * mine.cached(step.context, AUTO),
        moved=step.rows * (mine.mixed + values) * BF16,
        operations=2 * step.rows * mine.value_heads * (3 * state + within),
        efficiency=CACHE,
    )
    yield Operator(OTHER, moved=step.rows * values * BF16 * 3)  # gated norm
    yield from engine.quantized(step.rows, values)
    yield product(MATRICES, engine.scheme, step.rows, last)
