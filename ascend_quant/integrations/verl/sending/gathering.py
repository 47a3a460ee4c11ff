"""All-gather of FSDP2 shards, instead of DTensor.full_tensor: many tensors per collective, with prefetch.

    groups_of(params, ..)    consecutive parameters that one all-gather moves
    gathered(params, ..)     sends this rank's shards of a group in their wire format, and yields whole tensors

verl 0.9.1 gathers tensor by tensor, in float32, on demand: of the 0.51 s that the refit session of a 7B model was open
on two H200s, the engine waited 0.46 s for 339 such gathers, and wrote for 0.009 s. Weights that the engine rounds to
BF16 are rounded here before the all-gather, which halves the bytes.

The shards of a group are concatenated in a byte buffer. Rank r has rows [r c, (r + 1) c) of each tensor, where c is the
number of rows over the number of ranks, rounded up (`torch.chunk`, as FSDP2 shards). The concatenated pieces of all
ranks therefore begin with the whole tensor. Ranks have complete rows, so pre-quantized weights are quantized before the
all-gather.
"""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from ascend_quant.integrations.verl import compat
from ascend_quant.schemes import Scheme
from ascend_quant.transfer import prequantized
from ascend_quant.transfer.validate import NamedTensor, check_sent

logger = logging.getLogger(__name__)

DtypeOrScheme = Callable[[str, torch.Tensor], torch.dtype | Scheme]

AT_ONCE = 256 << 20  # bytes of a group's whole tensors; a larger tensor is a group by itself
ALIGNED = 16  # bytes: alignment of pieces, so that each can be viewed as any dtype


@dataclass(frozen=True)
class Piece:
    """A tensor's metadata in its wire format, with the number of its rows per rank.

    Attributes:
        shape, dtype: shape and dtype of the whole tensor in its wire format.
        scheme: scheme of its codes, if it is sent pre-quantized.
        rows: rows per rank, with padding on the last ranks; 0 for a tensor that every rank has whole.
    """

    name: str
    shape: torch.Size
    dtype: torch.dtype
    scheme: Scheme | None
    rows: int

    @classmethod
    def of(cls, name: str, shape: torch.Size, left: torch.dtype | Scheme, rows: int = 0) -> "Piece":
        """Describe a rank's piece of a parameter that is sent in a dtype, or pre-quantized in a scheme."""
        if isinstance(left, torch.dtype):
            return cls(name, shape, left, None, rows)
        return cls(name, prequantized.sent_shape(shape), prequantized.codes_dtype(left), left, rows)

    @property
    def filled(self) -> int:
        """The number of bytes per rank, including padding rows."""
        return self.rows * prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def bytes(self) -> int:
        """The number of bytes per rank, including padding rows, rounded up to a multiple of ALIGNED."""
        return -(-self.filled // ALIGNED) * ALIGNED

    @property
    def whole_bytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


Members = list[tuple[Piece, torch.Tensor]]  # each with this rank's shard


def gathered(
    params: Mapping[str, torch.Tensor],
    device: torch.device,
    dtype_or_scheme: DtypeOrScheme,
    finish: Callable[[list[NamedTensor]], list[NamedTensor]],
) -> Iterator[list[NamedTensor]]:
    """All-gather the shards of all ranks, group by group; a collective: every rank must exhaust it.

    Args:
        params: parameters by name, the same on every rank; either row shards (DTensor) or whole tensors, which are not
            moved.
        device: device of the process group; shards may be on the host.
        dtype_or_scheme: returns the dtype in which a parameter is sent, or the scheme if it is pre-quantized (names are
            unchanged).
        finish: maps a group's whole tensors to those that are yielded.

    Yields:
        The tensors of a group, which do not share memory with the buffers.

    Raises:
        RefitError: see `validate.check_sent`.
    """
    waiting = None
    for group, members in groups_of(params, dtype_or_scheme):
        under_way = Gather(group, members, device)
        if waiting is not None:
            yield finish(waiting.whole())
        waiting = under_way
    if waiting is not None:
        yield finish(waiting.whole())


def groups_of(params: Mapping[str, torch.Tensor], dtype_or_scheme: DtypeOrScheme) -> list[tuple[Any, Members]]:
    """List groups of consecutive parameters with the same process group, up to AT_ONCE bytes each."""
    found: list[tuple[Any, Members]] = []
    size = 0
    for name, param in params.items():
        group, piece, local = _piece(name, param, dtype_or_scheme(name, param))
        if not found or group is not found[-1][0] or size + piece.whole_bytes > AT_ONCE:
            found.append((group, []))
            size = 0
        found[-1][1].append((piece, local))
        size += piece.whole_bytes
    return found


def _piece(name: str, param: torch.Tensor, left: torch.dtype | Scheme) -> tuple[Any, Piece, torch.Tensor]:
    """Return a parameter's process group (None if there is nothing to gather), its piece, and the local shard."""
    local = local_of(param)
    check_sent(name, local)
    cut = _cut(param) if isinstance(param, DTensor) else []
    if not cut:
        return None, Piece.of(name, param.shape, left), local
    mesh, (at,) = param.device_mesh, cut
    rows = -(-param.shape[0] // mesh.size(at))
    return mesh.get_group(at), Piece.of(name, param.shape, left, rows), local


def local_of(param: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a parameter (all of a plain tensor), detached from autograd."""
    return (param.to_local() if isinstance(param, DTensor) else param).detach()


def flat_shards(engine: Any) -> dict[str, torch.Tensor] | None:
    """Return the FSDP2 shards of verl's training engine by their sent names; None if verl must gather."""
    found = compat.fsdp2_shards(engine)
    if found is not None and (other := [name for name, shard in found.items() if not is_gathered_flat(shard)]):
        tell_of_other_shards(other[0], len(other))
        return None
    return found


@functools.cache  # logged once
def tell_of_other_shards(name: str, count: int) -> None:
    logger.warning(
        "%d parameters, such as %s, are not sharded along rows, so verl gathers each of them separately", count, name
    )


def is_gathered_flat(param: torch.Tensor) -> bool:
    """Return whether this module can gather a parameter: it is sharded by rows, over at most one mesh dimension."""
    if not isinstance(param, DTensor):
        return True
    cut = [param.placements[at] for at in _cut(param)]
    return not cut or (len(cut) == 1 and type(cut[0]) is Shard and cut[0].dim == 0)


def _cut(param: DTensor) -> list[int]:
    """List the device mesh dimensions over which a parameter is sharded, not replicated."""
    return [at for at, placement in enumerate(param.placements) if not isinstance(placement, Replicate)]


def _packed(members: Members, device: torch.device) -> torch.Tensor:
    """Pack this rank's shards of a group in their wire format into one byte buffer; asynchronous."""
    mine = torch.empty(sum(piece.bytes for piece, _ in members), dtype=torch.uint8, device=device)
    begin, places = 0, []
    for piece, local in members:
        shape = (local.shape[0], *piece.shape[1:])
        place = mine[begin : begin + prod(shape) * piece.dtype.itemsize]
        places.append(place.view(piece.dtype).view(shape))
        begin += piece.bytes
    _put(members, places, device)
    return mine


def _put(members: Members, places: Sequence[torch.Tensor], device: torch.device) -> None:
    """Write this rank's shards of some pieces to the send buffer, all pre-quantized ones at once."""
    coded: dict[Scheme, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for (piece, local), place in zip(members, places, strict=True):
        here = local.to(device, non_blocking=True)  # first, since copy_ would round on the host
        if piece.scheme is None:
            place.copy_(here)
        else:
            coded.setdefault(piece.scheme, []).append((here, place))
    for scheme, pairs in coded.items():
        prequantized.encode(*zip(*pairs, strict=True), scheme)


def _made(members: Members) -> list[NamedTensor]:
    """Round or quantize tensors that are complete on this rank."""
    found = []
    for piece, local in members:
        if piece.scheme is None:
            found.append((piece.name, local.to(piece.dtype)))
        else:
            [(_, sent)] = prequantized.coded([(piece.name, local)], piece.scheme)
            found.append((piece.name, sent))
    return found


class Gather:
    """An all-gather in progress; `whole` waits for it, on the device's stream if it has one.

    Args:
        group: process group over which the parameters are sharded; None for whole tensors.
        members: the parameters, with this rank's shard of each.
        device: device of the process group.
    """

    def __init__(self, group: Any, members: Members, device: torch.device):
        self._pieces, self._work = [piece for piece, _ in members], None
        if group is None:
            self._whole = _made(members)
            return
        self._mine = _packed(members, device)
        self._all = self._mine.new_empty(dist.get_world_size(group), len(self._mine))
        self._work = dist.all_gather_into_tensor(self._all.view(-1), self._mine, group=group, async_op=True)

    def whole(self) -> list[NamedTensor]:
        """Wait for the all-gather and return the whole tensors by name; call it once, since it frees the buffers."""
        if self._work is None:
            return self._whole
        self._work.wait()
        whole, begin = [], 0
        for piece in self._pieces:
            there = self._all[:, begin : begin + piece.bytes]
            begin += piece.bytes
            flat = there[:, : piece.filled].reshape(-1)[: piece.whole_bytes]  # a copy, except for a single tensor
            whole.append((piece.name, flat.view(piece.dtype).view(piece.shape)))
        del self._mine, self._all
        return whole
