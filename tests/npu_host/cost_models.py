"""Models of true sizes without memory: what their trainers send, and where it goes in an engine of one rank.

Tensors come in verl's buckets: views of one buffer each, in the order of the checkpoint. Residents are those that the
vllm_ascend integration makes: transposed (ND) or in panels (FRACTAL_NZ), projections joined as vLLM joins them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from ascend_quant.kernels.npu.refit.formats import Panels, Transposed
from ascend_quant.kernels.writes import RowWrite, WriteBatch
from ascend_quant.refit.resident import QuantizedWeight, ResidentWeight

META, BF16 = torch.device("meta"), torch.bfloat16
BUCKET = 2 << 30  # bytes: verl's update_weights_bucket_megabytes


@dataclass(frozen=True)
class Sizes:
    """Of a model, by its config.json.

    Attributes:
        bias: whether q, k and v have one.
        head_norms: whether queries and keys are normalized.
        experts: of intermediate size each; 0 for a dense model.
    """

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    head: int = 128
    bias: bool = False
    head_norms: bool = False
    experts: int = 0


DENSE = Sizes("Qwen2.5-7B", 3584, 18944, 28, 28, 4, 152064, bias=True)
MOE = Sizes("Qwen3-30B-A3B", 2048, 768, 48, 32, 4, 151936, head_norms=True, experts=128)


@dataclass
class Bucket:
    """Tensors that come together, and their writes, as a plan knows them."""

    weights: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    writes: WriteBatch = field(default_factory=lambda: WriteBatch([], []))


@dataclass
class Model:
    """What a trainer sends and an engine holds."""

    sizes: Sizes
    residents: list[ResidentWeight]
    buckets: list[Bucket]

    @property
    def elements(self) -> int:
        return sum(tensor.numel() for bucket in self.buckets for _, tensor in bucket.weights)


Part = tuple[str, ResidentWeight, tuple]  # a tensor's name, its resident, and the index of its rows there


def model_of(sizes: Sizes, nz: bool, layers: int | None = None, bucket: int = BUCKET) -> Model:
    """Args:
    layers: how many of them; all by default.
    """
    parts = list(_parts(sizes, nz, sizes.layers if layers is None else layers))
    residents = list(dict.fromkeys(resident for _, resident, _ in parts))
    return Model(sizes, residents, list(_buckets(parts, bucket)))


def _parts(sizes: Sizes, nz: bool, layers: int) -> Iterator[Part]:
    """In the order of a checkpoint."""
    yield _plain("model.embed_tokens.weight", (sizes.vocabulary, sizes.hidden))
    for number in range(layers):
        yield from _layer(sizes, nz, f"model.layers.{number}")
    yield _plain("model.norm.weight", (sizes.hidden,))
    yield _plain("lm_head.weight", (sizes.vocabulary, sizes.hidden))


def _layer(sizes: Sizes, nz: bool, name: str) -> Iterator[Part]:
    q, kv = sizes.heads * sizes.head, sizes.kv_heads * sizes.head
    attention, ends = f"{name}.self_attn", (0, q, q + kv, q + 2 * kv)
    qkv = _codes(f"{attention}.qkv_proj.weight", (q + 2 * kv, sizes.hidden), nz)
    bias = ResidentWeight(f"{attention}.qkv_proj.bias", torch.empty(q + 2 * kv, dtype=BF16, device=META))
    for i, letter in enumerate("qkv"):
        rows = (slice(ends[i], ends[i + 1]),)
        yield f"{attention}.{letter}_proj.weight", qkv, rows
        if sizes.bias:
            yield f"{attention}.{letter}_proj.bias", bias, rows
    yield f"{attention}.o_proj.weight", _codes(f"{attention}.o_proj.weight", (sizes.hidden, q), nz), ()
    if sizes.head_norms:
        for letter in "qk":
            yield _plain(f"{attention}.{letter}_norm.weight", (sizes.head,))
    yield from _experts(sizes, nz, f"{name}.mlp") if sizes.experts else _mlp(sizes, nz, f"{name}.mlp")
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield _plain(f"{name}.{norm}.weight", (sizes.hidden,))


def _mlp(sizes: Sizes, nz: bool, name: str) -> Iterator[Part]:
    inner = sizes.intermediate
    gate_up = _codes(f"{name}.gate_up_proj.weight", (2 * inner, sizes.hidden), nz)
    yield f"{name}.gate_proj.weight", gate_up, (slice(0, inner),)
    yield f"{name}.up_proj.weight", gate_up, (slice(inner, 2 * inner),)
    yield f"{name}.down_proj.weight", _codes(f"{name}.down_proj.weight", (sizes.hidden, inner), nz), ()


def _experts(sizes: Sizes, nz: bool, name: str) -> Iterator[Part]:
    inner = sizes.intermediate
    yield _plain(f"{name}.gate.weight", (sizes.experts, sizes.hidden))
    w13 = _codes(f"{name}.experts.w13_weight", (sizes.experts, 2 * inner, sizes.hidden), nz)
    w2 = _codes(f"{name}.experts.w2_weight", (sizes.experts, sizes.hidden, inner), nz, rounded=True)
    for expert in range(sizes.experts):
        yield f"{name}.experts.{expert}.gate_proj.weight", w13, (expert, slice(0, inner))
        yield f"{name}.experts.{expert}.up_proj.weight", w13, (expert, slice(inner, 2 * inner))
        yield f"{name}.experts.{expert}.down_proj.weight", w2, (expert,)


def _plain(name: str, shape: tuple[int, ...]) -> Part:
    return name, ResidentWeight(name, torch.empty(shape, dtype=BF16, device=META)), ()


def _codes(name: str, shape: tuple[int, ...], nz: bool, rounded: bool = False) -> QuantizedWeight:
    """int8 of a weight (.., N, K), kept as (.., K, N).

    Args:
        rounded: whether vllm-ascend reads its scales in BF16.
    """
    *stack, rows, length = shape
    kept = torch.empty(*stack, length, rows, dtype=torch.int8, device=META)
    padded = math.prod(stack) * -(-rows // 32) * 32 * -(-length // 16) * 16
    layout = Panels(kept, torch.empty(padded, dtype=torch.int8, device=META)) if nz else Transposed(kept)
    scale = torch.empty(*stack, rows, device=META)
    copies = [torch.empty(*stack, rows, dtype=BF16, device=META)] if rounded else []
    stand_in = torch.empty(shape, dtype=torch.int8, device=META)
    return QuantizedWeight(name, stand_in, scale, length, layout=layout, copies=copies)


def _buckets(parts: Sequence[Part], most: int) -> Iterator[Bucket]:
    waiting, size = [], 0
    for part in parts:
        nbytes = part[1].data[part[2]].numel() * BF16.itemsize
        if waiting and size + nbytes > most:
            yield _bucket(waiting)
            waiting, size = [], 0
        waiting.append(part)
        size += nbytes
    yield _bucket(waiting)


def _bucket(parts: Sequence[Part]) -> Bucket:
    views = [resident.data[index] for _, resident, index in parts]
    buffer = torch.empty(sum(view.numel() for view in views), dtype=BF16, device=META)
    bucket, start = Bucket(), 0
    for number, ((name, resident, _), view) in enumerate(zip(parts, views, strict=True)):
        tensor = buffer[start : start + view.numel()].view(view.shape)
        start += view.numel()
        writes: list[RowWrite] = resident.writes(view, tensor, None, number, tensor)
        bucket.weights.append((name, tensor))
        bucket.writes.writes.extend(writes)
        bucket.writes.source_index.extend([number] * len(writes))
    return bucket
