"""One device of an engine: its share of a model, the kernels that serve it, and what these do between the products."""

from collections.abc import Iterator
from dataclasses import dataclass

from ascend_quant.advise.devices import Device
from ascend_quant.advise.layers import AUTO, BF16, CODE, FLOAT32, Cache
from ascend_quant.advise.roofline import LINK_EFFICIENCY, Operator
from ascend_quant.advise.serving import Serving
from ascend_quant.advise.shapes import Shape
from ascend_quant.advise.steps import DEVICES, OTHER, QUANTIZATION


@dataclass(frozen=True)
class Engine:
    """What one device of an engine computes with.

    Attributes:
        cache: what keys and values are kept in.
        tp, dp: devices that share a layer, and groups of these that share the experts.
        expert_parallel: whether each device has whole experts.
    """

    shape: Shape
    serving: Serving
    device: Device
    cache: Cache = AUTO
    tp: int = 1
    dp: int = 1
    expert_parallel: bool = False

    @property
    def name(self) -> str:
        """Of the row of the table."""
        return self.serving.name if self.cache == AUTO else f"{self.serving.name}, {self.cache.name} cache"

    @property
    def scheme(self) -> str:
        return self.serving.scheme

    def quantized(self, rows: float, k: float, fused: bool = False) -> Iterator[Operator]:
        """A kernel that reads x_MK in BF16 and writes codes and a scale a row, unless the one in front wrote them."""
        if self.scheme != "bf16" and not (fused and self.serving.fused):
            yield Operator(QUANTIZATION, moved=rows * (k * (BF16 + CODE) + FLOAT32))

    def written(self, rows: float, k: float) -> float:
        """Bytes that a norm or an activation writes: codes and a scale a row where it quantizes, else BF16."""
        return rows * (k * CODE + FLOAT32 if self.serving.fused else k * BF16)

    def norm(self, rows: float, hidden: int) -> Iterator[Operator]:
        """Hidden and residual in, the residual out, and what the next product multiplies."""
        yield Operator(OTHER, moved=rows * hidden * BF16 * 3 + self.written(rows, hidden))
        yield from self.quantized(rows, hidden, fused=True)

    def collective(self, devices: int, size: float, passes: int) -> Iterator[Operator]:
        """In a ring: an all-gather sends (n - 1) / n of `size` bytes from each device, an all-reduce twice that."""
        if devices > 1:
            sent = passes * size * (devices - 1) / devices
            wait = self.device.all_reduce_seconds + sent / (self.device.link * LINK_EFFICIENCY)
            yield Operator(DEVICES, kernels=0, wait=wait)
