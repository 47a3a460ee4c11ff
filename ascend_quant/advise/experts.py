"""What int8 experts reached on the H200, vLLM's own and ours for CUDA, against what this roofline expects there.

Qwen3-30B-A3B, 256 tokens in and 512 out, one H200, vLLM 0.23.0 (vLLM's: DESIGN.md; ours: benchmarks/results,
2026-11-23-h200-x2-rollout). Only the tokens/s are written down here; the expected speedup is computed, so that they
stay comparable.
"""

from collections.abc import Mapping

from ascend_quant.advise.devices import get_device
from ascend_quant.advise.rollouts import Workload, rollout
from ascend_quant.advise.shapes import Shape

QWEN3_30B_A3B = Shape(2048, 48, 32, 4, 128, 6144, 151936, False, 0, 128, 8, 768)
THEIRS = {64: (3384, 4130), 256: (9819, 9419)}  # batch: tokens/s in bf16, in int8 with vLLM's experts
OURS = {64: (3381, 5653), 256: (9992, 15274)}  # with ours


def reached(measured: Mapping[int, tuple[float, float]] = THEIRS) -> dict[int, tuple[float, float]]:
    """By batch: the measured speedup int8 / bf16, and the one that the roofline expects."""
    device, found = get_device("H200"), {}
    for batch, (bf16, int8) in measured.items():
        workload = Workload(tp=1, batch=batch, inputs=256, outputs=512)
        rollouts = [rollout(QWEN3_30B_A3B, scheme, device, workload) for scheme in ("int8", "bf16")]
        found[batch] = int8 / bf16, rollouts[0].tokens_per_second / rollouts[1].tokens_per_second
    return found
