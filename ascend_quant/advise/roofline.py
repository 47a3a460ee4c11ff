"""The roofline of one operator: the larger of its memory and its compute time, plus what its kernels cost to start.

    seconds = max(bytes / (bandwidth * part of it), operations / rate) + starts

Williams, Waterman, Patterson, "Roofline", 2009. The constants below are all that the estimate has besides the device's
bandwidth and rates. They were read off traces of BF16 decode steps on the H200 (benchmarks/results,
2026-11-23-h200-x2-rollout.json), none off a measured speedup; tests/unit/test_advise_results.py reads them again.
"""

from dataclasses import dataclass

from ascend_quant.advise.devices import Device

# Fractions of a large copy's bandwidth. Products that read large weights: gate_up of the 7B and the 32B at batch 64.
STREAM = 0.96
# FlashAttention 3 reading the KV cache: what 192 more sequences take, in the three models 1.38 to 1.51 of a copy.
CACHE = 0.69
# vLLM's sampling: what 192 more rows of logits take.
SAMPLING = 0.58

# To start a kernel inside a captured graph and to drain it: norms, rotation, activations take 2.0 to 2.9 us at 64 rows.
# Ascend/msmodeling counts 2 to 5 us on A2 and A3.
KERNEL_SECONDS = 2e-6
# More for a kernel of products or attention, whose pipeline fills and drains: at 64 rows products take 1.9 to 4.7 us
# above the time of their bytes, in the mean 3.3, whatever their size.
PIPELINE_SECONDS = 1.3e-6

# What the host adds to a step beside what it hides behind the device: the median of the traces' gaps. The scheduler has
# a process of its own there, as under verl.
STEP_SECONDS = 0.25e-3

# Fraction of a link's bandwidth that an all-reduce reaches (Ascend/msmodeling, comm_efficiency).
LINK_EFFICIENCY = 0.7

WEIGHTS, CACHED, MOVED, FLOPS, STARTS, LINKS = (
    "weights' bytes",
    "cache bytes",
    "activations' bytes",
    "FLOPs",
    "launch and host",
    "links",
)
CAUSES = (WEIGHTS, CACHED, MOVED, FLOPS, STARTS, LINKS)


@dataclass(frozen=True)
class Operator:
    """Work of one kind, on one device.

    Attributes:
        part: the line of the table that it belongs to.
        weights, cached, moved: bytes of weights, of the cache, of all else, read and written.
        operations: multiplications and additions of matrix products.
        scheme: whose rate the products have.
        kernels: to be started.
        efficiency: the fraction of the bandwidth that it reaches.
        wait: seconds between devices.
        times: how often it comes in a step, once a layer for instance.
    """

    part: str
    weights: float = 0.0
    cached: float = 0.0
    moved: float = 0.0
    operations: float = 0.0
    scheme: str = "bf16"
    kernels: int = 1
    efficiency: float = STREAM
    wait: float = 0.0
    times: float = 1

    @property
    def bytes(self) -> float:
        return self.times * (self.weights + self.cached + self.moved)

    def memory_seconds(self, device: Device) -> float:
        return self.bytes / (device.bandwidth * self.efficiency)

    def compute_seconds(self, device: Device) -> float:
        return self.times * self.operations / device.rates[self.scheme]

    def seconds(self, device: Device) -> float:
        """All of its `times`, one after the other."""
        return sum(self.causes(device).values())

    def causes(self, device: Device) -> dict[str, float]:
        """Its seconds by what they go to."""
        memory, compute = self.memory_seconds(device), self.compute_seconds(device)
        starts = self.kernels * KERNEL_SECONDS + (PIPELINE_SECONDS if self.operations else 0)
        found = {STARTS: self.times * starts, LINKS: self.times * self.wait}
        if compute > memory:
            return found | {FLOPS: compute}
        shares = {WEIGHTS: self.weights, CACHED: self.cached, MOVED: self.moved}
        return found | {cause: memory * self.times * part / self.bytes for cause, part in shares.items() if part}
