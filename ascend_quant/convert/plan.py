"""The plan of a conversion, shard by shard, made from safetensors headers and checked before anything is written.

Linear layers and experts are quantized. Layers that engines and recipes keep in full precision are copied: embeddings,
heads, norms, routers, vision and audio towers with their projectors, and the few linear layers that vLLM always builds
without quantization: DeepSeek's eh_proj (multi-token prediction) and its indexer's wk and weights_proj. Tensors that
belong to a quantized weight, and weights that are not floats, are errors.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from ascend_quant.convert.formats import BESIDE, Spec, tensors
from ascend_quant.convert.pieces import Copy, Dequantize, Part, Piece, Quantize
from ascend_quant.convert.quantized import Quantized
from ascend_quant.convert.shard_file import size
from ascend_quant.convert.source import becoming_bf16
from ascend_quant.profile.checkpoints import BadCheckpoint, Checkpoint
from ascend_quant.profile.scales import FLOATS
from ascend_quant.schemes import Scheme, definition_of
from ascend_quant.schemes.layer_names import BUILT_PLAIN, HEAD, ROUTERS, Ignored, layers_of
from ascend_quant.schemes.tensors import one_by_one

STACKS = ("gate_up_proj", "down_proj")
HEADS = ("lm_head", "head", "score", "classifier", "v_head")
EMBEDDINGS = ("wte", "wpe", "tok_embeddings")
TOWERS = ("visual", "vpm", "resampler", "patch_merger", "multi_modal_projector", "mm_projector")
TOWER_STARTS = ("vision", "audio")

CACHE = ("k_scale", "v_scale", "k_zero_point", "v_zero_point")  # scales of a quantized KV cache
EIGHT_BITS = ("I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0")
WEIGHTS = ("weight", "bias", "gate_up_proj", "down_proj")  # endings of the names of tensors

MASK_RANK = 4  # dimensions of the causal masks (bool or uint8) that old GPT-NeoX checkpoints contain as attention.bias


@dataclass
class Plan:
    """A conversion.

    Attributes:
        shards: pieces by the name of the shard, which is the same in IN and OUT.
        left: names of linear layers that are not quantized.
        kinds: number of quantized weights, and of unquantized ones by reason.
    """

    shards: dict[str, list[Piece]] = field(default_factory=dict)
    left: list[str] = field(default_factory=lambda: [HEAD])
    kinds: Counter = field(default_factory=Counter)

    def outputs(self, shard: str) -> dict[str, Spec]:
        """Return the tensors of a shard of OUT."""
        return {name: spec for piece in self.shards[shard] for name, spec in piece.outputs.items()}

    def quantized(self) -> set[str]:
        """Return the tensors of quantized layers."""
        pieces = (piece for shard in self.shards.values() for piece in shard)
        return {name for piece in pieces if isinstance(piece, Quantize) for name in piece.outputs}


def plan_quantizing(checkpoint: Checkpoint, scheme: Scheme, format: str, ignored: Ignored) -> Plan:
    """Plan the conversion of all matrices of linear layers and experts to codes and scales.

    Raises:
        BadCheckpoint: a layer that the scheme does not support, a weight that is already quantized or not a float, a
            weight whose rows are inputs, linear layers or stacks with another number of dimensions, or two tensors with
            one name.
        PatternError: a pattern matches nothing, or only a part of a fused layer.
    """
    plan, layers = Plan(), layers_of(_layers(checkpoint))
    skipped = ignored.among(layers, "IN")
    for name in checkpoint.names:
        pieces = plan.shards.setdefault(checkpoint.file_of(name).name, [])
        for layer_name, part in _parts(checkpoint, name):
            dtype, layer = checkpoint.dtype(name), layer_name.removesuffix(".weight")
            if not _is_layer(layer_name, part):
                _check_rank(layer_name, part)
                check_kept(checkpoint, name)
                pieces.append(Copy(part, layer_name, dtype))
                continue
            reason = "ignored" if layer in skipped else why_unquantized(layer)
            plan.kinds[reason or "quantized"] += 1
            if reason is None:
                _check_rows(checkpoint, part, layer)
                shape = _checked(checkpoint, part, layer, layers[layer].name, scheme)
                pieces.append(Quantize(part, tensors(format, scheme, layer_name, shape)))
                continue
            check_kept(checkpoint, name)
            pieces.append(Copy(part, layer_name, dtype))
            if reason not in ("embedding", "norm") and layer not in plan.left:
                plan.left.append(layer)
    _check_names(checkpoint, plan)
    if not plan.kinds["quantized"]:
        raise BadCheckpoint(
            f"{checkpoint.folder} has no linear layer to quantize; {len(plan.left)} layers are kept as they are"
        )
    return plan


def plan_undoing(checkpoint: Checkpoint, quantized: Quantized) -> Plan:
    """Plan the conversion of the whole model to BF16; the scales of a KV cache are dropped.

    Raises:
        BadCheckpoint: a quantized tensor that cannot be dequantized, two tensors with one name, or nothing to do.
    """
    plan, stored = Plan(), {quantized.stored_as(name): name for name in quantized.readers}
    rounded = becoming_bf16(checkpoint.config)
    for tensor in checkpoint.names:
        pieces = plan.shards.setdefault(checkpoint.file_of(tensor).name, [])
        if tensor in stored:
            name = stored[tensor]
            plan.kinds["dequantized"] += 1
            pieces.append(Dequantize(Part(tensor, quantized.shape(name)), name, quantized.readers[name]))
        elif tensor not in quantized.beside and not tensor.endswith(tuple(f".{leaf}" for leaf in CACHE)):
            check_kept(checkpoint, tensor)
            dtype = checkpoint.dtype(tensor)
            pieces.append(Copy(Part(tensor, checkpoint.shape(tensor)), tensor, "BF16" if dtype in rounded else dtype))
    _check_names(checkpoint, plan)
    if not plan.kinds and not any(checkpoint.dtype(name) in rounded for name in checkpoint.names):
        raise BadCheckpoint(f"{checkpoint.folder} is not quantized and has no tensor to convert to BF16")
    return plan


def why_unquantized(layer: str) -> str | None:
    """Return why a linear layer is not quantized by default; None if it is.

    Args:
        layer: a tensor's name without ".weight".
    """
    parts = layer.split(".")
    if any("embed" in part for part in parts) or parts[-1] in EMBEDDINGS:
        return "embedding"
    if any(part in TOWERS or part.startswith(TOWER_STARTS) for part in parts):
        return "tower"
    if parts[-1] in ROUTERS or "router" in parts:
        return "router"
    if parts[-1] in HEADS:
        return "head"
    if "norm" in parts[-1]:
        return "norm"
    return "kept by vLLM" if f".{layer}".endswith(tuple(f".{name}" for name in BUILT_PLAIN)) else None


def check_kept(checkpoint: Checkpoint, name: str) -> None:
    """Raise BadCheckpoint if a tensor belongs to a quantized weight, or is a weight but not a float."""
    dtype, (layer, _, leaf) = checkpoint.dtype(name), name.rpartition(".")
    if leaf == "bias" and len(checkpoint.shape(name)) == MASK_RANK:
        return
    if leaf in BESIDE:
        raise BadCheckpoint(
            f"{name} belongs to a quantized weight, but {layer} has no weight in a known format; remove the tensor"
        )
    if dtype in EIGHT_BITS or (leaf.endswith(WEIGHTS) and dtype not in FLOATS):
        known = f"unquantized weights are {', '.join(FLOATS)}"
        lacking = f", and there is no {name}_scale" if f"{name}_scale" not in checkpoint else ""
        raise BadCheckpoint(f"{name} is {dtype}{lacking}: it may be quantized in an unknown format; {known}")


def _layers(checkpoint: Checkpoint) -> Iterator[str]:
    """Return the names of all matrices, without ".weight"."""
    for name in checkpoint.names:
        yield from (one.removesuffix(".weight") for one, part in _parts(checkpoint, name) if _is_layer(one, part))


def _is_layer(name: str, part: Part) -> bool:
    return name.endswith(".weight") and len(part.shape) == 2


def _parts(checkpoint: Checkpoint, name: str) -> Iterator[tuple[str, Part]]:
    """Yield a tensor, or each expert of a stack, with its name in a quantized checkpoint."""
    shape = checkpoint.shape(name)
    if name.endswith(tuple(f".experts.{leaf}" for leaf in STACKS)):
        _check_stack(checkpoint, name)
        for matrix_name, matrix in one_by_one(name, torch.empty(shape, device="meta")):
            yield matrix_name, Part(name, tuple(matrix.shape), matrix.storage_offset() // shape[-1])
        return
    yield name, Part(name, shape)


def _check_stack(checkpoint: Checkpoint, name: str) -> None:
    """Check that a layer's stacks are (E, 2 * intermediate, hidden) and (E, hidden, intermediate), not transposed."""
    layer = name.rpartition(".")[0]
    names = [f"{layer}.{leaf}" for leaf in STACKS]
    if missing := [other for other in names if other not in checkpoint]:
        raise BadCheckpoint(f"{name} holds stacked experts, but {missing[0]} is missing")
    gate_up, down = (checkpoint.shape(other) for other in names)
    if len(gate_up) != 3 or down != (gate_up[0], gate_up[2], gate_up[1] // 2) or gate_up[1] % 2:
        wanted = "(experts, 2 * intermediate, hidden) and (experts, hidden, intermediate)"
        raise BadCheckpoint(
            f"{' and '.join(names)} are {gate_up} and {down}; supported: {wanted}. Save each expert as its own tensors"
        )


def _check_rank(name: str, part: Part) -> None:
    """Check that a linear layer is a matrix; experts in one tensor must have the names of stacks."""
    layer, _, leaf = name.rpartition(".")
    linear = leaf == "weight" and layer.endswith("_proj") and why_unquantized(layer) is None
    if linear or (len(part.shape) == 3 and layer.endswith(".experts")):
        wanted = "a linear layer is (outputs, inputs)" if linear else f"stacks are {' and '.join(STACKS)}"
        raise BadCheckpoint(f"{name} is {part.shape}; {wanted}; this layout cannot be quantized")


def _check_rows(checkpoint: Checkpoint, part: Part, layer: str) -> None:
    """Check by the bias that the rows of a weight are its outputs, unlike in GPT-2's Conv1D."""
    bias = f"{layer}.bias"
    if bias in checkpoint and checkpoint.shape(bias) != part.shape[:1]:
        raise BadCheckpoint(
            f"{part.source} is {part.shape} and {bias} {checkpoint.shape(bias)}: its rows are not its outputs "
            "(GPT-2's Conv1D?); only weights of shape (outputs, inputs) can be quantized"
        )


def _checked(checkpoint: Checkpoint, part: Part, layer: str, whole: str, scheme: Scheme) -> tuple[int, int]:
    """Return the shape of a weight after checking it; `whole` is the engine's layer that it is a part of."""
    if 0 in part.shape:
        raise BadCheckpoint(f"{part.source} is {part.shape}: it has no elements to quantize")
    check_kept(checkpoint, part.source)
    if not definition_of(scheme).takes(part.shape[1]):
        cut = f"rows of {part.shape[1]} elements are not divisible into groups of {scheme.group}"
        raise BadCheckpoint(
            f"{layer}: {cut}; keep it unquantized with --ignore {whole}, or --ignore 're:...' for several layers"
        )
    return part.shape


def _check_names(checkpoint: Checkpoint, plan: Plan) -> None:
    seen = {}
    for shard in plan.shards:
        for piece in plan.shards[shard]:
            for name, spec in piece.outputs.items():
                size(spec)  # raises an error for a dtype that cannot be copied
                if seen.setdefault(name, piece) is not piece:
                    sources = f"{seen[name].part.source} and {piece.part.source}"
                    raise BadCheckpoint(f"{checkpoint.folder}: {sources} would both become {name}; remove one of them")
