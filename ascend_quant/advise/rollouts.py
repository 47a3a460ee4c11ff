"""All steps of a batch of rollouts in one engine: seconds, tokens/s, and where the time goes.

    seconds = prefills + rounds * outputs * decode step at the mean context

All sequences have the same length and run side by side, as many as the KV cache holds; the rest follow in further
rounds. Prompts are computed in steps of PREFILL_ROWS tokens, apart from the decode steps.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ascend_quant.advise import steps
from ascend_quant.advise.devices import Device
from ascend_quant.advise.engines import Engine
from ascend_quant.advise.memory import Memory, memory
from ascend_quant.advise.operators import operators
from ascend_quant.advise.roofline import STARTS, STEP_SECONDS, Operator
from ascend_quant.advise.workloads import Workload

PREFILL_ROWS = 8192  # vLLM's max_num_batched_tokens of most devices


@dataclass(frozen=True)
class Phase:
    """One step, of prompts or of answers.

    Attributes:
        parts: seconds by part.
        causes: the same seconds by what they go to.
        moved: bytes on one device by part.
        kernels: that are started.
    """

    parts: dict[str, float]
    causes: dict[str, float]
    moved: dict[str, float]
    kernels: float

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def bound(self) -> str:
        """What most of its time goes to."""
        return max(self.causes, key=self.causes.get)


@dataclass(frozen=True)
class Rollout:
    """The estimate for one scheme and cache.

    Attributes:
        memory: of one device.
        concurrent: sequences that run side by side.
        waves: how often so many run, one lot after the other; the last one may be smaller.
        prefill, step: a step of prompts, and one that decodes.
        prefills: steps of prompts, for the whole batch.
        steps: steps that decode.
        tokens_per_second: answers alone, of the engine.
    """

    name: str
    kernels: str
    memory: Memory
    concurrent: int
    waves: int
    prefill: Phase
    step: Phase
    prefills: float
    steps: float
    seconds: float
    tokens_per_second: float

    def shares(self) -> dict[str, float]:
        """The fraction of all seconds that each part takes, prompts and answers together."""
        total = Counter({part: self.prefills * seconds for part, seconds in self.prefill.parts.items()})
        total.update({part: self.steps * seconds for part, seconds in self.step.parts.items()})
        return {part: total[part] / self.seconds for part in steps.PARTS if part in total}


def rollout(engine: Engine, workload: Workload) -> Rollout:
    """The estimate.

    Raises:
        DoesNotFit: naming the sizes.
        AdviceError: the model cannot be split like that.
    """
    held = memory(engine, workload)
    concurrent = held.side_by_side(workload)
    answers = steps.decode(concurrent / workload.dp, workload.inputs + workload.outputs / 2)
    tokens = workload.batch * workload.inputs / workload.dp
    prompts = steps.prefill(min(tokens, max(PREFILL_ROWS, workload.inputs)), workload.inputs)
    step, prefill = (phase(operators(engine, each), engine.device, workload) for each in (answers, prompts))
    prefills, rounds = tokens / prompts.rows, workload.batch / concurrent
    seconds = prefills * prefill.seconds + rounds * workload.outputs * step.seconds
    return Rollout(
        name=engine.name,
        kernels=engine.serving.kernels,
        memory=held,
        concurrent=concurrent,
        waves=-(-workload.batch // concurrent),
        prefill=prefill,
        step=step,
        prefills=prefills,
        steps=rounds * workload.outputs,
        seconds=seconds,
        tokens_per_second=workload.batch * workload.outputs / seconds,
    )


def phase(found: Iterable[Operator], device: Device, workload: Workload) -> Phase:
    """The operators' times, one after the other, and the host's."""
    parts, causes, moved, kernels = Counter(), Counter(), Counter(), 0.0
    for operator in found:
        spent = operator.causes(device)
        parts[operator.part] += sum(spent.values())
        causes.update(spent)
        moved[operator.part] += operator.bytes
        kernels += operator.times * operator.kernels
    host = STEP_SECONDS + max(0.0, workload.launching(kernels) - sum(parts.values()))
    parts[steps.HOST] += host
    causes[STARTS] += host
    return Phase(dict(parts), {cause: spent for cause, spent in causes.items() if spent}, dict(moved), kernels)
