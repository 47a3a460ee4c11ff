"""The operators of one step of the engine on one device, and the bytes that stay in its memory.

Layers are counted, not repeated. What stays BF16 in every scheme, as in this project's plugin: embedding, lm head,
router, norms, KV cache. A quantized scheme has one byte a weight, float32 scales per row, and a kernel of its own for
the activations in front of every product (vLLM's int8 and per-channel fp8 kernels do not fuse it).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ascend_quant.advise.devices import Device
from ascend_quant.advise.roofline import LINK_EFFICIENCY, Operator
from ascend_quant.advise.shapes import Shape

BF16, FLOAT32, CODE = 2, 4, 1  # bytes
# Bytes a logit of vLLM's sampler, temperature 1: to float32 2 + 4, temperature 4 + 4, softmax 4 + 4, noise 4,
# quotient 4 + 4 + 4, argmax 4.
SAMPLING_BYTES, SAMPLING_KERNELS = 42, 6
ROUTING_KERNELS = 3  # softmax and top-k; sorting the rows by expert takes two

MATRICES, EXPERTS, LM_HEAD, ATTENTION = "quantizable matrices", "experts", "lm head", "attention, KV cache"
QUANTIZATION, OTHER, SAMPLING = "activation quantization", "norms, activations, router", "sampling"
DEVICES, HOST = "between devices", "host"
PARTS = (MATRICES, EXPERTS, ATTENTION, LM_HEAD, QUANTIZATION, OTHER, SAMPLING, DEVICES, HOST)


@dataclass(frozen=True)
class Step:
    """What goes through the model at once.

    Attributes:
        rows: tokens.
        sampled: tokens whose successor is sampled: all of a decode step, the last of each prompt in a prefill.
        context: tokens that a row attends to, in the mean.
        read: tokens whose keys and values are read from memory.
    """

    rows: float
    sampled: float
    context: float
    read: float


def decode(sequences: float, context: float) -> Step:
    """One token for each of the sequences, which hold `context` tokens in the mean."""
    return Step(sequences, sequences, context, sequences * context)


def prefill(rows: float, prompt: int) -> Step:
    """`rows` tokens of whole prompts of that length; causal attention sees half of a prompt in the mean."""
    return Step(rows, rows / prompt, (prompt + 1) / 2, rows)


def operators(shape: Shape, scheme: str, step: Step, tp: int, device: Device) -> Iterator[Operator]:
    """The operators of a step on one of `tp` devices.

    Args:
        shape: of the whole model.
    """
    mine = shape.of_one_device(tp)
    reduced = list(_collective(tp, device, step.rows * mine.hidden * BF16, passes=2))
    for operator in (*_attention(mine, scheme, step), *reduced, *reduced):
        yield replace(operator, times=mine.layers)
    for operator in _mlp(mine, scheme, step):
        yield replace(operator, times=mine.dense_layers)
    for operator in _experts(mine, scheme, step) if mine.expert_layers else ():
        yield replace(operator, times=mine.expert_layers)
    yield product(LM_HEAD, "bf16", step.sampled, mine.hidden, mine.vocab / tp)
    yield Operator(SAMPLING, step.sampled * mine.vocab * SAMPLING_BYTES, kernels=SAMPLING_KERNELS)
    yield from reduced  # of the embedding
    yield from _collective(tp, device, step.sampled * mine.vocab * BF16, passes=1)  # the logits, gathered


def product(part: str, scheme: str, rows: float, k: int, n: float, copies: float = 1) -> Operator:
    """x_MK @ w_NK.T for `copies` weights with `rows` rows each, in one kernel; BF16 comes out."""
    item, scales = (BF16, 0) if scheme == "bf16" else (CODE, FLOAT32 * (rows + n))
    moved = item * (n * k + rows * k) + scales + BF16 * rows * n
    return Operator(part, copies * moved, copies * 2 * rows * n * k, scheme)


def distinct_experts(experts: int, top_k: int, rows: float) -> float:
    """How many of them `rows` tokens reach in the mean, if each chooses `top_k` at random: E (1 - (1 - k/E)^rows)."""
    return experts * (1 - (1 - top_k / experts) ** rows)


def weight_bytes(shape: Shape, scheme: str, tp: int) -> float:
    """All weights on one of `tp` devices; norms and biases, some 0.01 % of them, are left out."""
    mine = shape.of_one_device(tp)
    item = BF16 if scheme == "bf16" else CODE
    attention = mine.hidden * mine.head_dim * (2 * mine.heads + 2 * mine.kv_heads)
    mlp = 3 * mine.hidden * mine.width * mine.dense_layers
    experts = 3 * mine.hidden * mine.expert_width * mine.experts * mine.expert_layers
    embeddings = (1 if mine.tied else 2) * mine.vocab * mine.hidden / tp
    routers = mine.experts * mine.hidden * mine.expert_layers
    return item * (mine.layers * attention + mlp + experts) + BF16 * (embeddings + routers)


def cache_bytes(shape: Shape, tp: int) -> int:
    """Keys and values of one token on one of `tp` devices."""
    mine = shape.of_one_device(tp)
    return mine.layers * 2 * mine.kv_heads * mine.head_dim * BF16


def _attention(mine: Shape, scheme: str, step: Step) -> Iterator[Operator]:
    """Two norms, the products of an attention layer, rotation, writing and reading the cache."""
    q, kv = mine.heads * mine.head_dim, mine.kv_heads * mine.head_dim
    for _ in range(2):
        yield Operator(OTHER, step.rows * mine.hidden * BF16 * 3)  # hidden and residual in, and out
    yield from _quantized(scheme, step.rows, mine.hidden)
    yield product(MATRICES, scheme, step.rows, mine.hidden, q + 2 * kv)
    yield Operator(OTHER, step.rows * (q + kv) * BF16 * 2)
    yield Operator(OTHER, step.rows * 2 * kv * BF16 * 2)
    moved = (step.read * 2 * kv + step.rows * 2 * q) * BF16
    yield Operator(ATTENTION, moved, 4 * step.rows * step.context * q)
    yield from _quantized(scheme, step.rows, q)
    yield product(MATRICES, scheme, step.rows, q, mine.hidden)


def _mlp(mine: Shape, scheme: str, step: Step) -> Iterator[Operator]:
    """Gate and up in one product, their activation, down."""
    yield from _quantized(scheme, step.rows, mine.hidden)
    yield product(MATRICES, scheme, step.rows, mine.hidden, 2 * mine.width)
    yield Operator(OTHER, step.rows * mine.width * BF16 * 3)
    yield from _quantized(scheme, step.rows, mine.width)
    yield product(MATRICES, scheme, step.rows, mine.width, mine.hidden)


def _experts(mine: Shape, scheme: str, step: Step) -> Iterator[Operator]:
    """A router, and two grouped products over the experts that the rows reach."""
    chosen = step.rows * mine.top_k
    reached = distinct_experts(mine.experts, mine.top_k, step.rows)
    yield product(OTHER, "bf16", step.rows, mine.hidden, mine.experts)
    yield Operator(OTHER, kernels=ROUTING_KERNELS)
    yield from _quantized(scheme, step.rows, mine.hidden)
    yield product(EXPERTS, scheme, chosen / reached, mine.hidden, 2 * mine.expert_width, reached)
    yield Operator(OTHER, chosen * mine.expert_width * BF16 * 3)
    yield from _quantized(scheme, chosen, mine.expert_width)
    yield product(EXPERTS, scheme, chosen / reached, mine.expert_width, mine.hidden, reached)
    yield Operator(OTHER, (chosen + step.rows) * mine.hidden * BF16)


def _quantized(scheme: str, rows: float, k: int) -> Iterator[Operator]:
    """x_MK read in BF16, codes and a scale a row written."""
    if scheme != "bf16":
        yield Operator(QUANTIZATION, rows * (k * (BF16 + CODE) + FLOAT32))


def _collective(tp: int, device: Device, size: float, passes: int) -> Iterator[Operator]:
    """In a ring: an all-gather sends (tp - 1) / tp of `size` bytes from each device, an all-reduce twice that."""
    if tp > 1:
        sent = passes * size * (tp - 1) / tp
        yield Operator(DEVICES, kernels=0, wait=device.all_reduce_seconds + sent / (device.link * LINK_EFFICIENCY))
