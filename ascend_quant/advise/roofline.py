"""The roofline of one operator: the larger of its memory and its compute time, plus what its kernels cost to start.

    seconds = max(bytes / (bandwidth * efficiency), operations / rate) + kernels * KERNEL_SECONDS

Williams, Waterman, Patterson, "Roofline", 2009. The constants below are all that the estimate has besides the device's
bandwidth and rates; they hold for every model and scheme, and none was chosen to meet a measured speedup.
"""

from dataclasses import dataclass

from ascend_quant.advise.devices import Device

# Fraction of a large copy's bandwidth that kernels reach: the best of vLLM's int8 products on the H200 with at most 128
# rows (DESIGN.md: 0.3 to 0.77 of their floor; the lower ones are short, and KERNEL_SECONDS is there for these).
EFFICIENCY = 0.77

# To start a kernel inside a captured graph and to drain it. A per-token quantization takes 1.8 to 5 us on the H200 with
# at most 128 rows (DESIGN.md), of which up to 2.2 us are its bytes. Ascend/msmodeling counts 2 to 5 us on A2 and A3.
KERNEL_SECONDS = 2.5e-6

# What the host adds to a step, once, beside what it hides behind the device: 0.54 ms for vLLM 0.27's whole loop with
# no model in it (openfabric-systems/simllm pull request 204, on a CPU, +-30 %).
STEP_SECONDS = 0.5e-3

# Fraction of a link's bandwidth that an all-reduce reaches (Ascend/msmodeling, comm_efficiency).
LINK_EFFICIENCY = 0.7


@dataclass(frozen=True)
class Operator:
    """Work of one kind, on one device.

    Attributes:
        part: the line of the table that it belongs to.
        moved: bytes read and written.
        operations: multiplications and additions of matrix products.
        scheme: whose rate the products have.
        kernels: to be started.
        wait: seconds between devices.
        times: how often it comes in a step, once a layer for instance.
    """

    part: str
    moved: float = 0.0
    operations: float = 0.0
    scheme: str = "bf16"
    kernels: int = 1
    wait: float = 0.0
    times: int = 1

    def memory_seconds(self, device: Device, efficiency: float) -> float:
        return self.times * self.moved / (device.bandwidth * efficiency)

    def compute_seconds(self, device: Device) -> float:
        return self.times * self.operations / device.rates[self.scheme]

    def seconds(self, device: Device, efficiency: float) -> float:
        """All of its `times`, one after the other."""
        fixed = self.times * (self.kernels * KERNEL_SECONDS + self.wait)
        return max(self.memory_seconds(device, efficiency), self.compute_seconds(device)) + fixed
