"""Whole tensors of FSDP2's shards, many in one all-gather, and the next one under way while these are used.

verl 0.9.1 gathers tensor by tensor, in float32, when the sender asks for it: of the 0.51 s that a refit of a 7B was
open on two H200s, the engine waited 0.46 s for 339 such gathers, and wrote for 0.009 s. What the engine rounds to BF16
is rounded here before it moves, which halves the bytes.

A group's shards lie behind one another in a buffer of bytes. Rank r has rows [r c, (r + 1) c) of each tensor, c being
the rows over the ranks, rounded up (`torch.chunk`, by which FSDP2 shards), so the pieces of all ranks behind one
another begin with the whole tensor. Rows are whole on a rank, so what leaves as codes is quantized before it moves.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from ascend_quant.refit import coding
from ascend_quant.refit.sent import NamedTensor
from ascend_quant.schemes import Scheme

AsWhat = Callable[[str, torch.Tensor], torch.dtype | Scheme]

AT_ONCE = 256 << 20  # bytes of the whole tensors of a group; a larger tensor is a group of its own
ALIGNED = 16  # bytes: each piece may be viewed as any dtype


@dataclass(frozen=True)
class Piece:
    """What this rank has of a tensor.

    Attributes:
        shape, dtype: of the whole as it leaves.
        scheme: of its codes, if it leaves as such.
        rows: of the tensor on each rank, the last ones' filled up; 0 for a tensor that every rank has whole.
        first: the row of the whole tensor that the local ones begin with.
    """

    name: str
    local: torch.Tensor
    shape: torch.Size
    dtype: torch.dtype
    scheme: Scheme | None
    rows: int
    first: int

    @classmethod
    def of(
        cls, name: str, local: torch.Tensor, shape: torch.Size, left: torch.dtype | Scheme, rows: int = 0, rank: int = 0
    ) -> "Piece":
        """A rank's piece of a parameter of this shape that leaves as a dtype, or as a scheme's codes."""
        if isinstance(left, torch.dtype):
            return cls(name, local, shape, left, None, rows, rank * rows)
        return cls(name, local, coding.sent_shape(shape), coding.codes_dtype(left), left, rows, rank * rows)

    def part(self, local: torch.Tensor) -> coding.Part:
        """What is encoded: the local rows, wherever they are now."""
        return coding.Part(self.name, local, self.first * prod(local.shape[1:]))

    @property
    def filled(self) -> int:
        """Bytes on each rank, filled-up rows included."""
        return self.rows * prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def bytes(self) -> int:
        """The same, aligned."""
        return -(-self.filled // ALIGNED) * ALIGNED

    @property
    def whole_bytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


def gathered(
    params: Mapping[str, torch.Tensor], device: torch.device, as_what: AsWhat, encode: coding.Encode = coding.encode
) -> Iterator[list[NamedTensor]]:
    """The parameters whole, in their order, group by group; a collective: every rank exhausts it.

    Args:
        params: by name, the same on every rank; shards of rows (DTensor), or whole tensors, which stay where they are.
        device: of the process group; shards may wait on the host.
        as_what: in which dtype a parameter leaves, or as which scheme's codes (still by its own name).
        encode: makes these.

    Yields:
        Tensors of a group, with memory of their own.
    """
    waiting = None
    for group, members in groups(params, as_what):
        under_way = Gather(group, members, device, encode)
        if waiting is not None:
            yield waiting.whole()
        waiting = under_way
    if waiting is not None:
        yield waiting.whole()


def groups(params: Mapping[str, torch.Tensor], as_what: AsWhat) -> Iterator[tuple[Any, list[Piece]]]:
    """Consecutive parameters that are sharded over the same ranks, AT_ONCE bytes together; with their process group."""
    members: list[Piece] = []
    same, size = None, 0
    for name, param in params.items():
        group, piece = _piece(name, param, as_what(name, param))
        if members and (group is not same or size + piece.whole_bytes > AT_ONCE):
            yield same, members
            members, size = [], 0
        members.append(piece)
        same, size = group, size + piece.whole_bytes
    if members:
        yield same, members


def _piece(name: str, param: torch.Tensor, left: torch.dtype | Scheme) -> tuple[Any, Piece]:
    """Of a parameter, with the ranks that it is sharded over; None if there is nothing to gather."""
    if not isinstance(param, DTensor):
        return None, Piece.of(name, param, param.shape, left)
    cut = _cut(param)
    if not cut:
        return None, Piece.of(name, param.to_local(), param.shape, left)
    mesh, (at,) = param.device_mesh, cut
    rows = -(-param.shape[0] // mesh.size(at))
    return mesh.get_group(at), Piece.of(name, param.to_local(), param.shape, left, rows, mesh.get_local_rank(at))


def is_gathered_flat(param: torch.Tensor) -> bool:
    """Whether this module knows how a parameter is sharded: rows, over at most one dimension of the mesh."""
    if not isinstance(param, DTensor):
        return True
    cut = [param.placements[at] for at in _cut(param)]
    return not cut or (len(cut) == 1 and type(cut[0]) is Shard and cut[0].dim == 0)


def _cut(param: DTensor) -> list[int]:
    """Dimensions of the mesh over which a parameter is not whole."""
    return [at for at, placement in enumerate(param.placements) if not isinstance(placement, Replicate)]


def _put(members: Sequence[Piece], places: Sequence[torch.Tensor], device: torch.device, encode: coding.Encode) -> None:
    """Write what this rank has of some pieces to where it leaves from; codes of all of them at once."""
    coded: dict[Scheme, list[tuple[coding.Part, torch.Tensor]]] = {}
    for member, place in zip(members, places, strict=True):
        local = member.local.detach().to(device, non_blocking=True)  # first: copy_ would round on the host
        if member.scheme is None:
            place.copy_(local)
        else:
            coded.setdefault(member.scheme, []).append((member.part(local), place))
    for scheme, pairs in coded.items():
        encode(*zip(*pairs, strict=True), scheme)


def _made(members: Sequence[Piece], encode: coding.Encode) -> list[NamedTensor]:
    """What leaves of tensors that are whole here."""
    found = []
    for member in members:
        if member.scheme is None:
            found.append((member.name, member.local.to(member.dtype)))
        else:
            [(_, sent)] = coding.coded([(member.name, member.local.detach())], member.scheme, encode)
            found.append((member.name, sent))
    return found


class Gather:
    """An all-gather that has been started; `whole` waits for it, on the device's stream where it has one."""

    def __init__(self, group: Any, members: list[Piece], device: torch.device, encode: coding.Encode):
        self._members, self._work, self._encode = members, None, encode
        if group is None:
            return
        ranks, size = dist.get_world_size(group), sum(member.bytes for member in members)
        self._mine = torch.empty(size, dtype=torch.uint8, device=device)
        self._all = torch.empty(ranks, size, dtype=torch.uint8, device=device)
        begin, places = 0, []
        for member in members:
            shape = (member.local.shape[0], *member.shape[1:])
            place = self._mine[begin : begin + prod(shape) * member.dtype.itemsize]
            places.append(place.view(member.dtype).view(shape))
            begin += member.bytes
        _put(members, places, device, encode)
        self._work = dist.all_gather_into_tensor(self._all.view(-1), self._mine, group=group, async_op=True)

    def whole(self) -> list[NamedTensor]:
        """The tensors; once."""
        if self._work is None:
            return _made(self._members, self._encode)
        self._work.wait()
        found, begin = [], 0
        for member in self._members:
            pieces = self._all[:, begin : begin + member.bytes]
            begin += member.bytes
            flat = pieces[:, : member.filled].reshape(-1)[: member.whole_bytes]  # a copy, unless it is the only one
            found.append((member.name, flat.view(member.dtype).view(member.shape)))
        self._members = []
        del self._mine, self._all
        return found
