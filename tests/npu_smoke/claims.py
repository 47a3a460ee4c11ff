"""The sentences of README and docs that a device proves or refutes, by a short name; a test holds them to the pages."""

from dataclasses import dataclass

README, LOW_PRECISION, TIME = "README.md", "docs/low_precision.md", "docs/ascend.md"
ASCEND, REFIT, VERL = "docs/ascend.md", "docs/refit.md", "docs/verl.md"
KV_CACHE = "docs/kv_cache.md"


@dataclass(frozen=True)
class Claim:
    """What this project says.

    Attributes:
        page: of this repository.
        sentence: as it stands there, or the part of it that is meant.
    """

    page: str
    sentence: str


CLAIMS = {
    "versions": Claim(README, "0.10.1, 0.23, 0.27 and 0.30 with vllm-ascend on NPUs"),
    "bytes": Claim(ASCEND, "plain and in FRACTAL_NZ, bit by bit what the definition says"),
    "tables": Claim(ASCEND, "it uses tables of all BF16 magnitudes instead, and gives the bytes that a CPU gives"),
    "in place": Claim(REFIT, "no weight tensor of the engine ever moves, and no BF16 copy of a layer is made"),
    "same bytes": Claim(
        REFIT,
        "codes and scales depend on the BF16 values alone, regardless of arrival order, buckets and ranks",
    ),
    "bad tensors": Claim(REFIT, "a missing, extra, mis-shaped, NaN or twice-sent tensor is an error with its name"),
    "rule": Claim(
        REFIT,
        "`scale = absmax / 127` of each output channel in float32, `code = round_half_even(w / scale)`, BF16 weights; "
        "activations the same, per token",
    ),
    "receipts": Claim(
        REFIT, "tensors, bytes, milliseconds, changed codes and a digest of each refit, among verl's metrics"
    ),
    "proof": Claim(
        VERL,
        "the trainer sends a digest of every parameter behind the weights, the engine compares it with what arrived",
    ),
    "sleep": Claim(ASCEND, "Our casts do survive, and are made all the same"),
    "level 1": Claim(ASCEND, "Sleep level 1 only."),
    "c8 graphs": Claim(KV_CACHE, "A captured ACL graph reads the new ones, since no address changes"),
    "c8 follows": Claim(
        KV_CACHE, "every layer has the scales of the last sync, after a sleep too, and none are served without"
    ),
    "no fp8": Claim(LOW_PRECISION, "Atlas A2 and A3 have no FP8 units"),
    "seconds": Claim(TIME, "On paper, a refit by the fused path takes less time than seven copies of the BF16 weights"),
    "waits": Claim(TIME, "The fused path waits for the device at most twice a refit"),
    "ai cpu": Claim(TIME, "No operator of the fused path runs on the AI CPU"),
    "memory": Claim(TIME, "A refit leaves no memory reserved that was not so before"),
    "fused": Claim(TIME, "The fused path rests on operators that torch_npu has on both stacks"),
}
