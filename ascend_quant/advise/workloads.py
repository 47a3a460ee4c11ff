"""What one engine is asked for, and how it is set up."""

from dataclasses import dataclass

from ascend_quant.advise import AdviceError

MOST = 10**9  # of anything that a workload counts
MEMORY = 0.9  # vLLM 0.23's own gpu_memory_utilization


@dataclass(frozen=True)
class Workload:
    """One batch of rollouts in one engine.

    Attributes:
        tp: devices that share each layer.
        batch: sequences in flight in the engine.
        inputs: tokens of a prompt.
        outputs: tokens of an answer.
        dp: groups of `tp` devices with sequences of their own, which share the experts.
        expert_parallel: whether each device has whole experts, or a slice of all.
        memory: share of a device's memory given to the engine.
        eager: no captured graphs: the host starts every kernel.
        launch: seconds that the host takes to start one, measured; None where nobody has measured it.
        limit: sequences that the scheduler lets run side by side (vLLM's max_num_seqs); None for all.
    """

    tp: int
    batch: int
    inputs: int
    outputs: int
    dp: int = 1
    expert_parallel: bool = False
    memory: float = MEMORY
    eager: bool = False
    launch: float | None = None
    limit: int | None = None

    def __post_init__(self):
        counts = {"tp": self.tp, "dp": self.dp, "batch": self.batch, "in": self.inputs, "out": self.outputs}
        for option, count in counts.items():
            if not 1 <= count <= MOST:
                raise AdviceError(f"--{option} must be at least 1 and at most {MOST}, not {count!s:.40}")
        if self.batch < self.dp:
            raise AdviceError(f"--batch {self.batch} leaves some of --dp {self.dp} without a sequence")
        if self.limit is not None and self.limit < 1:
            raise AdviceError(f"--max-num-seqs must be at least 1, not {self.limit}")
        if not 0 < self.memory <= 1:
            raise AdviceError(f"--memory is a share of the device's memory, above 0 and at most 1, not {self.memory:g}")
        if self.launch is not None and not 1e-8 <= self.launch <= 1:
            raise AdviceError(f"--launch-us must be a number from 0.01 to 1000000, not {self.launch * 1e6:g}")
        if self.launch is not None and not self.eager:
            raise AdviceError("--launch-us is for --eager: a captured graph is started as a whole")

    def launching(self, kernels: float) -> float:
        """Seconds that the host needs to start so many kernels one by one; 0 from a graph, or where it is unknown."""
        return kernels * self.launch if self.eager and self.launch is not None else 0.0
