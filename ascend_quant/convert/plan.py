"""What becomes of every tensor, shard by shard, from the headers alone: checked before a byte is written."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from ascend_quant.convert.errors import ConvertError
from ascend_quant.convert.formats import Spec, tensors
from ascend_quant.convert.layers import ALWAYS_IGNORED, Ignored, left_alone
from ascend_quant.convert.pieces import FLOATS, Copy, Dequantize, Part, Piece, Quantize
from ascend_quant.convert.quantized import Quantized
from ascend_quant.convert.shard_file import size
from ascend_quant.profile.checkpoints import Checkpoint
from ascend_quant.schemes import Scheme
from ascend_quant.stacks import one_by_one

STACKS = ("gate_up_proj", "down_proj")


@dataclass
class Plan:
    """A conversion.

    Attributes:
        shards: pieces by the name of the shard, in IN as in OUT.
        left: linear layers that stay as they are, by name.
        kinds: how many weights are quantized, and how many are not, by the reason.
    """

    shards: dict[str, list[Piece]] = field(default_factory=dict)
    left: list[str] = field(default_factory=lambda: [ALWAYS_IGNORED])
    kinds: Counter = field(default_factory=Counter)

    def outputs(self, shard: str) -> dict[str, Spec]:
        """The tensors of a shard of OUT."""
        return {name: spec for piece in self.shards[shard] for name, spec in piece.outputs.items()}

    def quantized(self) -> set[str]:
        """The tensors of quantized layers."""
        pieces = (piece for shard in self.shards.values() for piece in shard)
        return {name for piece in pieces if isinstance(piece, Quantize) for name in piece.outputs}


def plan_quantizing(checkpoint: Checkpoint, scheme: Scheme, format: str, ignored: Ignored) -> Plan:
    """All matrices of linear layers and experts become codes and scales.

    Raises:
        ConvertError: a layer that the scheme cannot hold, a weight that is quantized already, stacked experts whose
            rows are inputs, a pattern that matches nothing, or two tensors of one name.
    """
    plan = Plan()
    for name in checkpoint.names:
        pieces = plan.shards.setdefault(checkpoint.file_of(name).name, [])
        for layer_name, part in _parts(checkpoint, name):
            dtype, layer = checkpoint.dtype(name), layer_name.removesuffix(".weight")
            if layer == layer_name or len(part.shape) != 2:
                pieces.append(Copy(part, layer_name, dtype))
                continue
            reason = "ignored" if ignored.matches(layer) else left_alone(layer)
            plan.kinds[reason or "quantized"] += 1
            if reason is None:
                pieces.append(Quantize(part, tensors(format, scheme, layer_name, _checked(part, layer, dtype, scheme))))
                continue
            pieces.append(Copy(part, layer_name, dtype))
            if reason not in ("embedding", "norm") and layer not in plan.left:
                plan.left.append(layer)
    ignored.check()
    _check_names(checkpoint, plan)
    if not plan.kinds["quantized"]:
        raise ConvertError(f"{checkpoint.folder} has no linear layer to quantize; {len(plan.left)} are left alone")
    return plan


def plan_undoing(checkpoint: Checkpoint, quantized: Quantized) -> Plan:
    """All quantized weights become BF16 again."""
    plan, stored = Plan(), {quantized.stored_as(name): name for name in quantized.readers}
    for tensor in checkpoint.names:
        pieces = plan.shards.setdefault(checkpoint.file_of(tensor).name, [])
        if tensor in stored:
            name = stored[tensor]
            plan.kinds["dequantized"] += 1
            pieces.append(Dequantize(Part(tensor, quantized.shape(name)), name))
        elif tensor not in quantized.beside:
            pieces.append(Copy(Part(tensor, checkpoint.shape(tensor)), tensor, checkpoint.dtype(tensor)))
    _check_names(checkpoint, plan)
    return plan


def _parts(checkpoint: Checkpoint, name: str) -> Iterator[tuple[str, Part]]:
    """A tensor, or each expert of a stack, by the name that it has in a quantized checkpoint."""
    shape = checkpoint.shape(name)
    if len(shape) == 3 and name.endswith(tuple(f".experts.{leaf}" for leaf in STACKS)):
        _check_stack(checkpoint, name)
        for matrix_name, matrix in one_by_one(name, torch.empty(shape, device="meta")):
            yield matrix_name, Part(name, tuple(matrix.shape), matrix.storage_offset() // shape[-1])
        return
    yield name, Part(name, shape)


def _check_stack(checkpoint: Checkpoint, name: str) -> None:
    """A layer's stacks are (E, 2 * intermediate, hidden) and (E, hidden, intermediate), not the other way round."""
    layer = name.rpartition(".")[0]
    names = [f"{layer}.{leaf}" for leaf in STACKS]
    if missing := [other for other in names if other not in checkpoint]:
        raise ConvertError(f"{name} is a stack of experts, but there is no {missing[0]}")
    gate_up, down = (checkpoint.shape(other) for other in names)
    if len(gate_up) != 3 or down != (gate_up[0], gate_up[2], gate_up[1] // 2) or gate_up[1] % 2:
        wanted = "(experts, 2 * intermediate, hidden) and (experts, hidden, intermediate)"
        raise ConvertError(
            f"{' and '.join(names)} are {gate_up} and {down}; read are {wanted}. Save the experts one by one"
        )


def _checked(part: Part, layer: str, dtype: str, scheme: Scheme) -> tuple[int, int]:
    """The shape of a weight that can be quantized."""
    if dtype not in FLOATS:
        raise ConvertError(
            f"{part.source} is {dtype}: already quantized? undo that first: ascend-quant convert --to bf16"
        )
    if scheme.group and part.shape[1] % scheme.group:
        cut = f"rows of {part.shape[1]} elements cannot be cut into groups of {scheme.group}"
        raise ConvertError(f"{layer}: {cut}; leave it as it is with --ignore {layer}, or --ignore 're:...' for several")
    return part.shape


def _check_names(checkpoint: Checkpoint, plan: Plan) -> None:
    seen = {}
    for shard in plan.shards:
        for piece in plan.shards[shard]:
            for name, spec in piece.outputs.items():
                size(spec)  # an error for a dtype that cannot be carried over
                if seen.setdefault(name, piece) is not piece:
                    sources = f"{seen[name].part.source} and {piece.part.source}"
                    raise ConvertError(f"{checkpoint.folder}: {sources} would both become {name}; remove one of them")
