"""Roofline model of a rollout: an operator takes the larger of its memory and compute time, plus launch overhead.

    seconds = max(bytes / (bandwidth * fraction), operations / rate) + starts

Williams, Waterman, Patterson, "Roofline", 2009. The constants are from traces of BF16 decode steps on an H200 with vLLM
0.23, not from measured speedups. tests/unit/test_advise.py compares predictions for other lengths, other models and the
H100 with measurements. Nothing was measured on the other devices, for which only memory is estimated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ascend_quant.advise import AdviceError
from ascend_quant.advise.model import BF16, CODE, SCALE, Matrix, Model, Workload

GIB = 2**30
STREAM = 0.96  # fraction of a large copy's bandwidth: products with large weights
CACHE = 0.69  # the same for attention that reads the KV cache
SAMPLING = 0.58  # the same for the sampler
PIPELINE_SECONDS = 1.3e-6  # additional time of products and attention to fill and drain their pipeline
PREFILL_TOKENS = 8192  # prompt tokens per step: vLLM's default max_num_batched_tokens for most devices
ATTENTION_KERNELS, ROUTING_KERNELS, SAMPLING_KERNELS = 2, 3, 28
# Bytes per logit in sampling. vLLM's sampler: to float32 2 + 4, temperature 4 + 4, softmax 4 + 4, noise 4,
# quotient 4 + 4 + 4, argmax 4. This plugin's one-pass sampling takes 306 instead of 669 us (7B, 256 rows).
SAMPLED = {"bf16": 42, "int8": 19}
UNCERTAINTY = 0.13  # the largest error among the measured speedups is 12 %
NPUS = ("A2", "A3")
PUBLISHED = (
    "\nPublished by others for Qwen2.5-7B with FlashRL on Atlas A2, seconds per training step with BF16 and "
    "INT8 rollouts:\nGSM8K 48.9 and 52.5 (+6.9 %), DAPO-math-17k 151.0 and 116.2 (-23.0 %)."
)


@dataclass(frozen=True)
class Device:
    """A device as counted by --tp, and its rates: a GPU, an Ascend 910B (A2), or one of the two dies of a 910C (A3).

    Attributes:
        memory: bytes, as reported to vLLM.
        bandwidth: bytes/s read and written by a large copy; None if not measured by this project.
        rates: operations/s of an 8192 x 8192 x 8192 product, by scheme.
        kernel: seconds to launch a kernel in a captured graph, and to drain it.
        host: seconds of host time per step that do not overlap with the device.
    """

    memory: int
    bandwidth: float | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    kernel: float = 2e-6
    host: float = 0.25e-3


H200 = Device(140 * GIB, 4.27e12, {"bf16": 695e12, "int8": 1279e12})
# H100: 19.58 GB were copied in 6.47 ms on 2026-11-25; compute rates are the H200's, which has the same chip.
H100 = replace(H200, memory=79 * GIB, bandwidth=3.03e12)
DEVICES = {"A2": Device(64 * GIB), "A3": Device(64 * GIB), "A100": Device(79 * GIB), "H100": H100, "H200": H200}


class Row(NamedTuple):
    """The formats of an engine's weights and of its KV cache: bf16 or int8."""

    scheme: str
    cache: str


ROWS = {"bf16": Row("bf16", "bf16"), "int8": Row("int8", "bf16"), "int8, int8 cache": Row("int8", "int8")}


@dataclass(frozen=True)
class Estimate:
    """The estimate for one row.

    Attributes:
        weights, sequence: bytes on one device: all weights, and the cache of a full sequence.
        fit: number of sequences that fit besides the weights.
        decode: seconds of a decode step at the mean context, by part; empty if nothing fits or nothing was measured.
        tokens_per_second: tokens/s of answers, ignoring links between devices; None if `decode` is empty.
    """

    weights: int
    sequence: int
    fit: int
    decode: dict[str, float]
    tokens_per_second: float | None


def estimate(model: Model, device: Device, row: Row, workload: Workload) -> Estimate:
    """Estimate a batch: its prompts, then its answers in rounds of as many sequences as fit.

    Raises:
        AdviceError: the model cannot be split among the devices.
    """
    share = model.on_each_of(workload.tp)
    weights = share.weight_bytes(row.scheme)
    sequence = share.cache_bytes(row.cache) * (workload.inputs + workload.outputs)
    fit = max(0, int((workload.memory * device.memory - weights) // sequence))
    if not fit or device.bandwidth is None:
        return Estimate(weights, sequence, fit, {}, None)
    concurrent, prompts = min(workload.batch, fit), workload.batch * workload.inputs
    tokens = min(prompts, max(PREFILL_TOKENS, workload.inputs))
    # a prompt token attends to half of the prompt on average
    first = Step(share, device, row, tokens, tokens / workload.inputs, workload.inputs / 2).seconds()
    decode = Step(share, device, row, concurrent, concurrent, workload.inputs + workload.outputs / 2).seconds()
    rounds = workload.batch / concurrent
    seconds = prompts / tokens * sum(first.values()) + rounds * workload.outputs * sum(decode.values())
    return Estimate(weights, sequence, fit, decode, workload.batch * workload.outputs / seconds)


@dataclass(frozen=True)
class Step:
    """A pass of one device through the model: a decode step, or a prefill.

    Attributes:
        tokens: number of computed tokens: one per sequence, or more in prefill.
        sequences: number of sequences that are sampled.
        context: mean number of tokens to which a token attends.
    """

    model: Model
    device: Device
    row: Row
    tokens: float
    sequences: float
    context: float

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each part; kernels run one after the other."""
        layers, logits = self.model.layers, self.sequences * self.model.vocab
        products = sum(self._product(self.tokens, matrix) for matrix in self.model.attention()) + self._feed_forward()
        head = BF16 * (self.model.hidden * (self.model.vocab + self.sequences) + logits)
        draw = self._kernel(logits * SAMPLED[self.row.scheme], fraction=SAMPLING, kernels=SAMPLING_KERNELS)
        return {
            "products": layers * products,
            "attention": layers * self._attention(),
            "lm head": self._kernel(head, 2 * logits * self.model.hidden),
            "rest": layers * self._between() + draw + self.device.host,
        }

    def _kernel(
        self, moved: float, operations: float = 0, scheme: str = "bf16", fraction: float = STREAM, kernels: int = 1
    ) -> float:
        """Return the seconds of `kernels` that together move so many bytes and do so many operations."""
        busy = max(moved / (self.device.bandwidth * fraction), operations / self.device.rates[scheme])
        return busy + kernels * self.device.kernel + (PIPELINE_SECONDS if operations else 0)

    def _product(self, rows: float, matrix: Matrix, copies: float = 1) -> float:
        """Return the seconds of x_MK @ w_NK.T with `rows` rows for each of `copies` weights, in one kernel."""
        k, n = matrix
        item, scale = (BF16, 0) if self.row.scheme == "bf16" else (CODE, SCALE)
        moved = copies * (n * (item * k + scale) + rows * (item * k + scale + BF16 * n))
        return self._kernel(moved, copies * 2 * rows * n * k, self.row.scheme)

    def _feed_forward(self) -> float:
        """Return the seconds of the GEMMs of an MLP, or of the experts that the tokens reach."""
        reached, rows = 1.0, self.tokens
        if self.model.experts:
            reached = distinct_experts(self.model.experts, self.model.top_k, self.tokens)
            rows = self.tokens * self.model.top_k / reached
        return sum(self._product(rows, matrix, reached) for matrix in self.model.mlp())

    def _attention(self) -> float:
        """Return the seconds of attention: keys and values written, the cache read, a prompt's once for all tokens."""
        model, tokens = self.model, self.tokens
        queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
        cached = model.cache_bytes(self.row.cache) / model.layers
        read = tokens if tokens > self.sequences else tokens * self.context
        moved, operations = read * cached + tokens * 2 * queries * BF16, 4 * tokens * self.context * queries
        attend = self._kernel(moved, operations, fraction=CACHE, kernels=ATTENTION_KERNELS)
        return attend + self._kernel(tokens * (cached + BF16 * 2 * keys))

    def _between(self) -> float:
        """Return a layer's seconds beside GEMMs and attention: norms, rotation, activation, codes, the router."""
        model, tokens = self.model, self.tokens
        code, scale = (BF16, 0) if self.row.scheme == "bf16" else (CODE, SCALE)  # norms and activations write codes
        queries, chosen = model.heads * model.head_dim, tokens * (model.top_k or 1)
        spent = 2 * self._kernel(tokens * (model.hidden * (3 * BF16 + code) + scale))
        spent += self._kernel(tokens * (queries + model.kv_heads * model.head_dim) * BF16 * 2)
        spent += self._kernel(chosen * (model.width * (2 * BF16 + code) + scale))
        if scale:
            spent += self._kernel(tokens * (queries * (BF16 + CODE) + SCALE))
        if model.experts:
            spent += self._kernel(
                BF16 * model.hidden * (model.experts + tokens), 2 * tokens * model.hidden * model.experts
            )
            spent += ROUTING_KERNELS * self.device.kernel + self._kernel((chosen + tokens) * model.hidden * BF16)
        return spent


def distinct_experts(experts: int, top_k: int, tokens: float) -> float:
    """Return the expected number of experts chosen by any token, each `top_k` at random: E (1 - (1 - k/E)^tokens)."""
    return experts * (1 - (1 - top_k / experts) ** tokens)


def advise(model: Model, device: str, workload: Workload) -> tuple[str, dict[str, Estimate]]:
    """Return the verdict on INT8 for this engine, with the estimates by row.

    Raises:
        AdviceError: the model cannot be split among the devices, or does not fit with INT8 weights either.
    """
    # vllm-ascend's int8 cache has other scales
    rows = {name: row for name, row in ROWS.items() if device not in NPUS or row.cache == "bf16"}
    found = {name: estimate(model, DEVICES[device], row, workload) for name, row in rows.items()}
    if not (int8 := found["int8"]).fit:
        sizes = f"{int8.weights / GIB:.1f} GiB of weights and {int8.sequence / GIB:.2f} GiB of cache for one sequence"
        given = workload.memory * DEVICES[device].memory / GIB
        raise AdviceError(f"INT8 does not fit either: {sizes} in {given:.1f} GiB; raise --tp or --memory")
    if int8.tokens_per_second is None:
        return f"Speed was not measured on {device}.{PUBLISHED if device in NPUS else ''}", found
    return _verdict(found, workload), found


def gains(found: dict[str, Estimate]) -> dict[str, float]:
    """Return the tokens/s of each row relative to BF16; none if BF16 does not fit or nothing was measured."""
    base = found["bf16"].tokens_per_second
    return {name: each.tokens_per_second / base for name, each in found.items()} if base else {}


def _verdict(found: dict[str, Estimate], workload: Workload) -> str:
    if not (gained := gains(found)):
        return "INT8 fits, BF16 does not."
    gain, base, int8 = gained["int8"], found["bf16"], found["int8"]
    word = "may or may not pay (measure it)"
    if not 1 / (1 + UNCERTAINTY) < gain <= 1 + UNCERTAINTY:
        word = "pays" if gain > 1 else "does not pay"
    links = "; communication between devices is not included" if workload.tp > 1 else ""
    share = base.decode["products"] / sum(base.decode.values())
    more = f"\nINT8 fits {int8.fit} sequences at a time, BF16 {base.fit}." if base.fit < workload.batch else ""
    return (
        f"INT8 {word}: {gain:.2f} times the tokens/s of BF16, with an int8 KV cache "
        f"{gained['int8, int8 cache']:.2f}\n(estimated within {UNCERTAINTY:.0%}{links}). The operations that "
        f"become INT8 take {share:.0%} of a BF16 decode step.{more}"
    )
