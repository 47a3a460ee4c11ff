"""Whole tensors of FSDP2's shards, in place of DTensor.full_tensor: many in one all-gather, the next one under way.

    shares(params, ..)    what this rank has of each group, as it leaves: codes, BF16
    gathered(shares)      the groups whole

verl 0.9.1 gathers tensor by tensor, in float32, when the sender asks for it: of the 0.51 s that a refit of a 7B was
open on two H200s, the engine waited 0.46 s for 339 such gathers, and wrote for 0.009 s. What the engine rounds to BF16
is rounded here before it moves, which halves the bytes.

A group's shards lie behind one another in a buffer of bytes. Rank r has rows [r c, (r + 1) c) of each tensor, c being
the rows over the ranks, rounded up (`torch.chunk`, by which FSDP2 shards), so the pieces of all ranks behind one
another begin with the whole tensor. Rows are whole on a rank, so what leaves as codes is quantized before it moves.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from ascend_quant.integrations.verl import compat
from ascend_quant.schemes import Scheme
from ascend_quant.transfer import prequantized
from ascend_quant.transfer.validate import NamedTensor

logger = logging.getLogger(__name__)

AsWhat = Callable[[str, torch.Tensor], torch.dtype | Scheme]

AT_ONCE = 256 << 20  # bytes of the whole tensors of a group; a larger tensor is a group of its own
ALIGNED = 16  # bytes: each piece may be viewed as any dtype


@dataclass(frozen=True)
class Piece:
    """Metadata of a tensor as it leaves, and how many of its rows each rank has.

    Attributes:
        shape, dtype: of the whole as it leaves.
        scheme: of its codes, if it leaves as such.
        rows: of the tensor on each rank, the last ones' filled up; 0 for a tensor that every rank has whole.
    """

    name: str
    shape: torch.Size
    dtype: torch.dtype
    scheme: Scheme | None
    rows: int

    @classmethod
    def of(cls, name: str, shape: torch.Size, left: torch.dtype | Scheme, rows: int = 0) -> "Piece":
        """Describe a rank's piece of a parameter of this shape that leaves as a dtype, or as a scheme's codes."""
        if isinstance(left, torch.dtype):
            return cls(name, shape, left, None, rows)
        return cls(name, prequantized.sent_shape(shape), prequantized.codes_dtype(left), left, rows)

    @property
    def filled(self) -> int:
        """Number of bytes on each rank, padding rows included."""
        return self.rows * prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def bytes(self) -> int:
        """Number of bytes on each rank, padding rows included, rounded up to a multiple of ALIGNED."""
        return -(-self.filled // ALIGNED) * ALIGNED

    @property
    def whole_bytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


Members = list[tuple[Piece, torch.Tensor]]  # with what this rank has of each


@dataclass(frozen=True)
class Share:
    """This rank's shard of a group of parameters, as it leaves.

    Attributes:
        group: of the ranks over which it is sharded; None for tensors that are whole here.
        pieces: of its tensors.
        mine: their bytes, one after the other; empty with no group.
        whole: the tensors, with no group.
    """

    group: Any
    pieces: tuple[Piece, ...]
    mine: torch.Tensor
    whole: tuple[NamedTensor, ...] = ()


def own_share(group: Any, members: Members, device: torch.device) -> Share:
    """Pack this rank's shards of a group as they leave; asynchronous, in memory of its own where it is gathered."""
    pieces = tuple(piece for piece, _ in members)
    if group is None:
        return Share(None, pieces, torch.empty(0, dtype=torch.uint8), tuple(_made(members)))
    mine = torch.empty(sum(piece.bytes for piece in pieces), dtype=torch.uint8, device=device)
    begin, places = 0, []
    for piece, local in members:
        shape = (local.shape[0], *piece.shape[1:])
        place = mine[begin : begin + prod(shape) * piece.dtype.itemsize]
        places.append(place.view(piece.dtype).view(shape))
        begin += piece.bytes
    _put(members, places, device)
    return Share(group, pieces, mine)


def shares(params: Mapping[str, torch.Tensor], device: torch.device, as_what: AsWhat) -> Iterator[Share]:
    """Yield this rank's shards of the parameters, in their order, group by group.

    Args:
        params: by name, the same on every rank; shards of rows (DTensor), or whole tensors, which stay where they are.
        device: of the process group; shards may wait on the host.
        as_what: in which dtype a parameter leaves, or as which scheme's codes (still by its own name).
    """
    for group, members in groups(params, as_what):
        yield own_share(group, members, device)


def gathered(parts: Iterable[Share]) -> Iterator[list[NamedTensor]]:
    """All-gather the whole tensors of all ranks' shares, group by group; a collective: every rank exhausts it.

    Yields:
        Tensors of a group, with memory of their own.
    """
    waiting = None
    for share in parts:
        under_way = Gather(share)
        if waiting is not None:
            yield waiting.whole()
        waiting = under_way
    if waiting is not None:
        yield waiting.whole()


def groups(params: Mapping[str, torch.Tensor], as_what: AsWhat) -> Iterator[tuple[Any, Members]]:
    """Yield consecutive parameters that share a process group (sharded over the same ranks), AT_ONCE bytes together."""
    members: Members = []
    same, size = None, 0
    for name, param in params.items():
        group, piece, local = _piece(name, param, as_what(name, param))
        if members and (group is not same or size + piece.whole_bytes > AT_ONCE):
            yield same, members
            members, size = [], 0
        members.append((piece, local))
        same, size = group, size + piece.whole_bytes
    if members:
        yield same, members


def _piece(name: str, param: torch.Tensor, left: torch.dtype | Scheme) -> tuple[Any, Piece, torch.Tensor]:
    """Return a parameter's process group (None if there is nothing to gather), its piece, and the local shard."""
    local = local_of(param)
    cut = _cut(param) if isinstance(param, DTensor) else []
    if not cut:
        return None, Piece.of(name, param.shape, left), local
    mesh, (at,) = param.device_mesh, cut
    rows = -(-param.shape[0] // mesh.size(at))
    return mesh.get_group(at), Piece.of(name, param.shape, left, rows), local


def local_of(param: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a parameter (the whole of a plain tensor), detached from autograd."""
    return (param.to_local() if isinstance(param, DTensor) else param).detach()


def flat_shards(engine: Any) -> dict[str, torch.Tensor] | None:
    """Return the FSDP2 shards of verl's training engine by the names that it sends; None where verl must gather."""
    found = compat.fsdp2_shards(engine)
    if found is not None and (other := [name for name, shard in found.items() if not is_gathered_flat(shard)]):
        tell_of_other_shards(other[0], len(other))
        return None
    return found


@functools.cache  # once
def tell_of_other_shards(name: str, count: int) -> None:
    logger.warning("%d parameters, such as %s, are not sharded by rows: verl gathers them one by one", count, name)


def is_gathered_flat(param: torch.Tensor) -> bool:
    """Return whether this module knows how a parameter is sharded: rows, over at most one dimension of the mesh."""
    if not isinstance(param, DTensor):
        return True
    cut = [param.placements[at] for at in _cut(param)]
    return not cut or (len(cut) == 1 and type(cut[0]) is Shard and cut[0].dim == 0)


def _cut(param: DTensor) -> list[int]:
    """List the device mesh dimensions over which a parameter is sharded, not replicated."""
    return [at for at, placement in enumerate(param.placements) if not isinstance(placement, Replicate)]


def _put(members: Members, places: Sequence[torch.Tensor], device: torch.device) -> None:
    """Write what this rank has of some pieces to where it leaves from; codes of all of them at once."""
    coded: dict[Scheme, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for (piece, local), place in zip(members, places, strict=True):
        here = local.to(device, non_blocking=True)  # first: copy_ would round on the host
        if piece.scheme is None:
            place.copy_(here)
        else:
            coded.setdefault(piece.scheme, []).append((here, place))
    for scheme, pairs in coded.items():
        prequantized.encode(*zip(*pairs, strict=True), scheme)


def _made(members: Members) -> list[NamedTensor]:
    """Round or quantize tensors that are whole on this rank, as they leave."""
    found = []
    for piece, local in members:
        if piece.scheme is None:
            found.append((piece.name, local.to(piece.dtype)))
        else:
            [(_, sent)] = prequantized.coded([(piece.name, local)], piece.scheme)
            found.append((piece.name, sent))
    return found


class Gather:
    """An all-gather under way; `whole` waits for it, on the device's stream where it has one."""

    def __init__(self, share: Share):
        self._share, self._work = share, None
        if share.group is not None:
            mine = share.mine
            self._all = torch.empty(dist.get_world_size(share.group), len(mine), dtype=mine.dtype, device=mine.device)
            self._work = dist.all_gather_into_tensor(self._all.view(-1), mine, group=share.group, async_op=True)

    def whole(self) -> list[NamedTensor]:
        """Wait for the all-gather and return the whole tensors by name; call it once, since it drops the buffers."""
        pieces, whole = self._share.pieces, [*self._share.whole]
        if self._work is None:
            return whole
        self._work.wait()
        begin = 0
        for piece in pieces:
            there = self._all[:, begin : begin + piece.bytes]
            begin += piece.bytes
            flat = there[:, : piece.filled].reshape(-1)[: piece.whole_bytes]  # a copy, unless it is the only one
            whole.append((piece.name, flat.view(piece.dtype).view(piece.shape)))
        del self._share, self._all
        return whole
