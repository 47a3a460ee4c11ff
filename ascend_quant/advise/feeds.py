"""The operators of a layer's MLP or experts, with the norm in front."""

from collections.abc import Iterator, Sequence

from ascend_quant.advise.engines import Engine
from ascend_quant.advise.layers import BF16, Experts, Matrix
from ascend_quant.advise.roofline import STREAM, Operator
from ascend_quant.advise.steps import EXPERTS, MATRICES, OTHER, Step, product

ROUTING_KERNELS = 3  # softmax and top-k; sorting the rows by expert takes two


def mlp(engine: Engine, matrices: Sequence[Matrix], rows: float) -> Iterator[Operator]:
    """Gate and up in one product, their activation, down."""
    yield from engine.norm(rows, engine.shape.hidden)
    yield from _gated(engine, matrices, rows)


def _gated(engine: Engine, matrices: Sequence[Matrix], rows: float) -> Iterator[Operator]:
    up, down = matrices
    yield product(MATRICES, engine.scheme, rows, up)
    yield Operator(OTHER, moved=rows * down[0] * BF16 * 2 + engine.written(rows, down[0]))
    yield from engine.quantized(rows, down[0], fused=True)
    yield product(MATRICES, engine.scheme, rows, down)


def experts(engine: Engine, mine: Experts, step: Step) -> Iterator[Operator]:
    """A router, and two grouped products over the experts that the rows of all groups reach; `mine` is a share."""
    hidden, serving, whole = engine.shape.hidden, engine.serving, engine.shape.experts
    rows = step.rows * engine.dp
    reached = distinct_experts(whole.experts, whole.top_k, rows) / mine.parts
    chosen = rows * mine.top_k / mine.parts
    efficiency = STREAM if step.prompts else serving.few if rows <= whole.experts else serving.many
    yield from engine.norm(step.rows, hidden)
    yield product(OTHER, "bf16", step.rows, (hidden, mine.experts))
    yield Operator(OTHER, kernels=ROUTING_KERNELS + serving.small_kernels)
    up, down = mine.matrices(hidden)
    yield product(EXPERTS, engine.scheme, chosen / reached, up, reached, efficiency)
    yield Operator(OTHER, moved=chosen * mine.width * BF16 * 2 + engine.written(chosen, mine.width))
    yield from engine.quantized(chosen, mine.width, fused=True)
    yield product(EXPERTS, engine.scheme, chosen / reached, down, reached, efficiency)
    yield Operator(OTHER, moved=(chosen + rows) * hidden * BF16)
    if mine.shared:
        yield from _gated(engine, mine.for_all(hidden), step.rows)


def distinct_experts(experts: int, top_k: int, rows: float) -> float:
    """How many of them `rows` tokens reach in the mean, if each chooses `top_k` at random: E (1 - (1 - k/E)^rows)."""
    return experts * (1 - (1 - top_k / experts) ** rows)
