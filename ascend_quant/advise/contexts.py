"""A decode step by the tokens that its sequences hold: its time, its floor, and how many sequences fit.

The floor is what the step reads, weights and cache, at the whole of a large copy's bandwidth: no kernel, no
activation, no host. What lies between it and the time is what other kernels could still gain.
"""

from dataclasses import dataclass

from ascend_quant.advise import steps
from ascend_quant.advise.engines import Engine
from ascend_quant.advise.memory import Memory, cache_bytes
from ascend_quant.advise.operators import operators
from ascend_quant.advise.rollouts import phase
from ascend_quant.advise.workloads import Workload

CONTEXTS = (1024, 8192, 30720)


@dataclass(frozen=True)
class AtContext:
    """One context.

    Attributes:
        context: tokens that each sequence holds.
        fits: such sequences beside the weights, in the whole engine; where it is 0 there is no step.
        sequences: of the batch that run side by side.
        floor, seconds: of a step.
    """

    context: int
    fits: int
    sequences: int
    floor: float | None
    seconds: float | None


def at_contexts(engine: Engine, workload: Workload, held: Memory) -> list[AtContext]:
    """The usual contexts up to the longest sequence of the workload, and that one."""
    longest = workload.inputs + workload.outputs
    return [
        at_context(engine, workload, held, context)
        for context in (*(usual for usual in CONTEXTS if usual < longest), longest)
    ]


def at_context(engine: Engine, workload: Workload, held: Memory, context: int) -> AtContext:
    """A step of as many sequences as fit, all of that length."""
    fits = int((held.usable - held.weights) // cache_bytes(engine, context)) * workload.dp
    sequences = min(workload.batch, fits, workload.limit or workload.batch)
    if not sequences:
        return AtContext(context, fits, 0, None, None)
    found = list(operators(engine, steps.decode(sequences / workload.dp, context)))
    read = sum(operator.times * (operator.weights + operator.cached) for operator in found)
    seconds = phase(found, engine.device, workload).seconds
    return AtContext(context, fits, sequences, read / engine.device.bandwidth, seconds)
