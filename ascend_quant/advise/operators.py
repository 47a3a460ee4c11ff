"""All operators of one step on one device of an engine.

Layers are counted, not repeated. What stays BF16 in every scheme, as in this project's plugin: embedding, lm head,
routers, norms, convolutions. A quantized scheme has one byte a weight and float32 scales per row.
"""

from collections.abc import Iterator
from dataclasses import replace

from ascend_quant.advise import feeds, mixers
from ascend_quant.advise.engines import Engine
from ascend_quant.advise.layers import BF16, Experts
from ascend_quant.advise.roofline import SAMPLING, Operator
from ascend_quant.advise.shapes import Layer
from ascend_quant.advise.steps import DRAW, LM_HEAD, Step, product

SAMPLING_KERNELS = 28


def operators(engine: Engine, step: Step) -> Iterator[Operator]:
    """Of one step.

    Raises:
        AdviceError: the model cannot be split like that.
    """
    mine = engine.shape.of_one_device(engine.tp, engine.dp, engine.expert_parallel)
    for layer in mine.layers:
        yield from (replace(each, times=each.times * layer.times) for each in _layer(engine, layer, step))
    yield product(LM_HEAD, "bf16", step.sequences, (mine.hidden, mine.vocab / engine.tp))
    logits = step.sequences * mine.vocab
    yield Operator(DRAW, moved=logits * engine.serving.sampling_bytes, kernels=SAMPLING_KERNELS, efficiency=SAMPLING)
    yield from engine.collective(engine.tp, step.rows * mine.hidden * BF16, passes=2)  # of the embedding
    yield from engine.collective(engine.tp, logits * BF16, passes=1)  # gathered


def _layer(engine: Engine, layer: Layer, step: Step) -> Iterator[Operator]:
    size = step.rows * engine.shape.hidden * BF16
    yield from mixers.operators(engine, layer.mixer, step)
    yield from engine.collective(engine.tp, size, passes=2)
    if not isinstance(layer.feed, Experts):
        yield from feeds.mlp(engine, layer.feed.matrices(engine.shape.hidden), step.rows)
        yield from engine.collective(engine.tp, size, passes=2)
        return
    yield from feeds.experts(engine, layer.feed, step)
    if engine.dp == 1:
        yield from engine.collective(engine.tp, size, passes=2)
    else:  # the groups' rows are gathered, and their sums given back
        yield from 2 * list(engine.collective(engine.tp * engine.dp, size * engine.dp, passes=1))
