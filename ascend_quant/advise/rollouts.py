"""All steps of a batch of rollouts in one engine: seconds, tokens/s, and where the time goes.

    seconds = prefills + rounds * outputs * (decode step at the mean context + host)

All sequences have the same length and run side by side, as many as the KV cache holds; the rest follow in further
rounds. Prompts are computed in steps of PREFILL_ROWS tokens, apart from the decode steps.
"""

from collections import Counter
from dataclasses import dataclass

from ascend_quant.advise import AdviceError, steps
from ascend_quant.advise.devices import GIB, Device
from ascend_quant.advise.roofline import EFFICIENCY, STEP_SECONDS
from ascend_quant.advise.shapes import Shape

PREFILL_ROWS = 8192  # vLLM's max_num_batched_tokens of most devices
MEMORY_USED = 0.9  # vLLM's gpu_memory_utilization; activations come out of it too, and are left out


class DoesNotFit(AdviceError):
    """The weights leave no room for the keys and values of one sequence."""


@dataclass(frozen=True)
class Workload:
    """What one engine is asked for.

    Attributes:
        tp: devices that share each layer.
        batch: sequences in flight.
        inputs: tokens of a prompt.
        outputs: tokens of an answer.
    """

    tp: int
    batch: int
    inputs: int
    outputs: int

    def __post_init__(self):
        for name, option in (("tp", "tp"), ("batch", "batch"), ("inputs", "in"), ("outputs", "out")):
            if getattr(self, name) < 1:
                raise AdviceError(f"--{option} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True)
class Rollout:
    """The estimate for one scheme.

    Attributes:
        concurrent: sequences that run side by side.
        prefill: seconds of all prompts, by part.
        step: seconds of one decode step, by part.
        step_bytes: bytes that a decode step moves on one device, by part.
        compute_bound: parts of a decode step in which most of the time is the products' own.
        seconds: of everything.
        tokens_per_second: answers alone, of the engine.
    """

    scheme: str
    concurrent: int
    prefill: dict[str, float]
    step: dict[str, float]
    step_bytes: dict[str, float]
    compute_bound: tuple[str, ...]
    seconds: float
    tokens_per_second: float

    def shares(self, workload: Workload) -> dict[str, float]:
        """The fraction of all seconds that each part takes, prompts and answers together."""
        rounds = workload.batch / self.concurrent * workload.outputs
        total = Counter(self.prefill) + Counter({part: rounds * seconds for part, seconds in self.step.items()})
        return {part: total[part] / self.seconds for part in steps.PARTS if part in total}


def rollout(shape: Shape, scheme: str, device: Device, workload: Workload, efficiency: float = EFFICIENCY) -> Rollout:
    """The estimate for one scheme.

    Raises:
        DoesNotFit: naming the sizes.
        AdviceError: the model cannot be split like that, or the efficiency is none.
    """
    if not 0 < efficiency <= 1:
        raise AdviceError(f"--efficiency must be above 0 and at most 1, not {efficiency}")
    concurrent = concurrent_sequences(shape, scheme, device, workload)
    answer = steps.decode(concurrent, workload.inputs + workload.outputs / 2)
    operators = list(steps.operators(shape, scheme, answer, workload.tp, device))
    step = _seconds(operators, device, efficiency)
    step[steps.HOST] = STEP_SECONDS
    prefill = _prefill(shape, scheme, device, workload, efficiency)
    seconds = sum(prefill.values()) + workload.batch / concurrent * workload.outputs * sum(step.values())
    moved, memory, compute = Counter(), Counter(), Counter()
    for operator in operators:
        moved[operator.part] += operator.times * operator.moved
        memory[operator.part] += operator.memory_seconds(device, efficiency)
        compute[operator.part] += operator.compute_seconds(device)
    return Rollout(
        scheme=scheme,
        concurrent=concurrent,
        prefill=dict(prefill),
        step=dict(step),
        step_bytes=dict(moved),
        compute_bound=tuple(part for part in compute if compute[part] > memory[part]),
        seconds=seconds,
        tokens_per_second=workload.batch * workload.outputs / seconds,
    )


def concurrent_sequences(shape: Shape, scheme: str, device: Device, workload: Workload) -> int:
    """How many whole sequences of the batch the memory beside the weights holds.

    Raises:
        DoesNotFit: naming the sizes.
    """
    weights = steps.weight_bytes(shape, scheme, workload.tp)
    sequence = steps.cache_bytes(shape, workload.tp) * (workload.inputs + workload.outputs)
    usable = MEMORY_USED * device.memory
    if usable < weights + sequence:
        raise DoesNotFit(
            f"{scheme} does not fit: {weights / GIB:.1f} GiB of weights and {sequence / GIB:.2f} GiB of KV cache for "
            f"one sequence on each device, of which {usable / GIB:.1f} GiB are usable; raise --tp"
        )
    return min(workload.batch, int((usable - weights) // sequence))


def _prefill(shape: Shape, scheme: str, device: Device, workload: Workload, efficiency: float) -> Counter:
    tokens = workload.batch * workload.inputs
    rows = min(tokens, PREFILL_ROWS)
    step = steps.prefill(rows, workload.inputs)
    once = _seconds(steps.operators(shape, scheme, step, workload.tp, device), device, efficiency)
    once[steps.HOST] = STEP_SECONDS
    return Counter({part: tokens / rows * seconds for part, seconds in once.items()})


def _seconds(operators, device: Device, efficiency: float) -> Counter:
    seconds = Counter()
    for operator in operators:
        seconds[operator.part] += operator.seconds(device, efficiency)
    return seconds
