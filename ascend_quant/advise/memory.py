"""What lies in a device's memory: weights, and the cache of as many sequences as fit beside them."""

from dataclasses import dataclass

from ascend_quant.advise import AdviceError
from ascend_quant.advise.devices import GIB
from ascend_quant.advise.engines import Engine
from ascend_quant.advise.shapes import weight_bytes
from ascend_quant.advise.workloads import Workload


class DoesNotFit(AdviceError):
    """The weights leave no room for the keys and values of one sequence."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one device.

    Attributes:
        usable: given to the engine.
        quantized, scales, rest: weights; the rest is BF16.
        sequence: cache of one whole sequence.
        fits: whole sequences beside the weights, in one group of devices.
    """

    usable: float
    quantized: float
    scales: float
    rest: float
    sequence: float
    fits: int

    @property
    def weights(self) -> float:
        return self.quantized + self.scales + self.rest

    def side_by_side(self, workload: Workload) -> int:
        """Sequences of the batch that run at once in the whole engine."""
        return min(workload.batch, self.fits * workload.dp, workload.limit or workload.batch)


def memory(engine: Engine, workload: Workload) -> Memory:
    """What the engine holds.

    Raises:
        DoesNotFit: naming the sizes.
    """
    weights = weight_bytes(engine.shape, engine.scheme, engine.tp, engine.dp, engine.expert_parallel)
    total, usable = sum(weights.values()), workload.memory * engine.device.memory
    sequence = cache_bytes(engine, workload.inputs + workload.outputs)
    if usable < total + sequence:
        raise DoesNotFit(
            f"{engine.name} does not fit: {total / GIB:.1f} GiB of weights and {sequence / GIB:.2f} GiB of KV cache "
            f"for one sequence on each device, of which {usable / GIB:.1f} GiB are usable; raise --tp or --memory"
        )
    return Memory(usable, **weights, sequence=sequence, fits=int((usable - total) // sequence))


def cache_bytes(engine: Engine, tokens: float) -> float:
    """Of one sequence of so many tokens, on one device."""
    mine = engine.shape.of_one_device(engine.tp, engine.dp, engine.expert_parallel)
    return sum(layer.times * layer.mixer.cached(tokens, engine.cache) for layer in mine.layers)
