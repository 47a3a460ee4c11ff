"""Delta sync: sends only the bytes that have changed since the last weight sync, for disaggregated engines.

    trainer   Sender     groups of tensors --> blobs    whole, or the bytes that differ from the group's base
    engine    Receiver   a blob --> a group's tensors   views of its own base, patched in place

At RL's learning rates a step changes few of the sent codes and BF16 values. The tensors of a group are concatenated as
bytes. For each block of 64 KiB, a patch contains the number of changed bytes, their offsets (2 bytes each) and their
values; if that is larger than the group, the whole group is sent. Both sides keep all bytes of the last sync.

A patch identifies its base, an earlier sync, by a number, the sender's id and its nonce, so it is never applied to
another base. The caller first asks the receivers for their base, and passes it to the sender. The result is verified as
in any sync, since digests are computed before the tensors are encoded. A receiver keeps a sync as its base only after
the engine has applied and verified it; otherwise the next sync is sent whole.

A blob consists, in little-endian order, of the int64 header, the layout as JSON, then the bytes; or, for a patch, of
the header, int32 counts, uint16 offsets, and the bytes. The last blob of a sync is only a header; without it, the sync
cannot become a base.
"""

import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from ascend_quant.transfer.delta_base import Ahead, Base
from ascend_quant.transfer.delta_layout import ALIGNED, checked_bytes, layout_of, read_layout, side_by_side, views_of
from ascend_quant.transfer.errors import RefitError
from ascend_quant.transfer.validate import NamedTensor

NAME = "ascend_quant.delta"  # names of blobs: this, and the group's index
FORMAT = 3  # 2 had no nonce; 1 had no group index and no last blob
BLOCK = 1 << 16  # bytes per block, so that offsets fit into 16 bits


class Sync(NamedTuple):
    """The identity of a weight sync.

    Attributes:
        sender, number: the `Sender`'s id, and the number of its sync.
        nonce: a random number of the `Sender` object, since a new object with the same id counts from 1 again.
    """

    sender: int
    number: int
    nonce: int


class Header(NamedTuple):
    """The header of a blob: its group and sync, whether it is whole or a delta, and its sizes in bytes.

    Attributes:
        sender, number, nonce: fields of its `Sync`.
        group: the group's index in the sync.
        base: number of the sync to which a patch applies; 0 for a whole group.
        layout: size of the JSON in bytes; 0 for a patch, whose layout is that of its base.
        size: size of the whole group in bytes.
        changed: number of bytes that a patch replaces.
    """

    format: int
    sender: int
    number: int
    group: int
    base: int
    layout: int
    size: int
    changed: int
    nonce: int

    @property
    def sync(self) -> Sync:
        """The sync that the blob belongs to."""
        return Sync(self.sender, self.number, self.nonce)

    @property
    def is_last(self) -> bool:
        """True if this blob ends its sync: it has no group, and all groups came before it."""
        return not any((self.base, self.layout, self.size, self.changed))


HEADER_BYTES = 8 * len(Header._fields)


class Sender:
    """The trainer's side: one instance on every rank that sends weights, all with the same id.

    Args:
        base_on: device that stores the last sync's bytes; None for the weights' own device.

    Attributes:
        sender: id of the sender.
        number: number of the last sync if it was sent completely; otherwise 0.
        against: number of the sync that all receivers have; 0 if they do not agree. Whole groups are sent unless this
            is the last sync.
    """

    def __init__(self, base_on: torch.device | None = None, sender: int = 0):
        self.sender, self.number, self.against = sender, 0, 0
        self._base_on = base_on
        self._base = Base(base_on)
        self._syncs, self._nonce = 0, secrets.randbits(62)

    def agree(self, sender: int, against: int) -> None:
        """Set the sender of the next sync, and the number of the sync that all receivers have (0 for none)."""
        self.sender, self.against = sender, against

    def blobs(self, groups: Iterable[Sequence[NamedTensor]]) -> Iterator[NamedTensor]:
        """Encode the groups of one sync as blobs."""
        known = self.number if self.number == self.against else 0
        self.number = self.against = 0  # an interrupted sync cannot be a base
        self._syncs += 1
        if not known:
            self._base = Base(self._base_on)
        i, device, before = -1, None, Ahead(self._base.groups)
        for i, group in enumerate(groups):
            blob = self._blob(i, group, known, before)
            device = blob.device
            yield f"{NAME}.{i}", blob
        if device is not None:
            yield f"{NAME}.{i + 1}", _as_bytes(self._header(i + 1), device)
        self.number = self._syncs

    def _header(self, group: int, base: int = 0, layout: int = 0, size: int = 0, changed: int = 0) -> Header:
        return Header(FORMAT, self.sender, self._syncs, group, base, layout, size, changed, self._nonce)

    def _blob(self, i: int, group: Sequence[NamedTensor], known: int, before: Ahead) -> torch.Tensor:
        layout, now = layout_of(group), side_by_side(group)
        same = known and i < len(self._base.groups) and self._base.layouts[i] == layout
        if same and (patch := _patch(before.read(i, now.device), now)) is not None:
            self._base.patch(i, patch.at, patch.values)
            header = self._header(i, base=known, size=now.numel(), changed=patch.changed)
            return torch.cat([_as_bytes(header, now.device), *patch.parts])
        self._base.keep(i, layout, now)
        text = json.dumps(layout, separators=(",", ":")).encode()
        text += b" " * (-len(text) % ALIGNED)
        header = self._header(i, layout=len(text), size=now.numel())
        said = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(now.device)
        return torch.cat([_as_bytes(header, now.device), said, now])


class Receiver:
    """The side of one engine worker: begin, take blobs in order, settle after the engine has applied them.

    Args:
        base_on: device that stores the last sync's bytes; None for the device on which blobs arrive.
        reserve: see `Base`.

    Attributes:
        has: the last sync if it is settled; otherwise None.
    """

    def __init__(self, base_on: torch.device | None = None, reserve: int | None = None):
        self._base = Base(base_on, reserve)
        self.has: Sync | None = None
        self.begin()

    def begin(self) -> None:
        """Begin to receive a sync; if the last one was not settled, its bytes are unknown and cannot be patched."""
        self._had, self.has = self.has, None
        self._taking: Sync | None = None
        self._count, self._is_whole = 0, False

    def take(self, name: str, tensor: torch.Tensor) -> list[NamedTensor]:
        """Return a group's tensors, whose memory the next sync patches; other tensors are returned unchanged.

        Raises:
            RefitError: a blob cannot be read, or is a delta relative to another base; sending all weights fixes it.
        """
        if name.rpartition(".")[0] != NAME:
            return [(name, tensor)]
        i, self._count = self._count, self._count + 1
        header = _header(name, tensor)
        if name != f"{NAME}.{i}" or header.group != i or self._is_whole:
            raise RefitError(f"{name} was received instead of {NAME}.{i}: a group is missing, or was sent twice")
        if self._taking not in (None, header.sync):
            raise RefitError(f"{name} belongs to {header.sync}, but the group before belongs to {self._taking}")
        self._taking = header.sync
        if header.is_last:
            self._is_whole = True
            return []
        self._write(name, i, tensor[HEADER_BYTES:], header)
        return views_of(self._base.layouts[i], self._base.groups[i])

    def settle(self) -> None:
        """Record that the engine has applied and verified the sync; a delta may follow if the last blob arrived."""
        self.has = self._taking if self._is_whole else None

    def _write(self, name: str, i: int, rest: torch.Tensor, header: Header) -> None:
        if not header.base:
            layout = read_layout(name, rest[: header.layout])
            self._base.keep(i, layout, checked_bytes(name, rest[header.layout :], header.size, layout).clone())
            return
        wanted = header.sync._replace(number=header.base)
        if wanted != self._had or i >= len(self._base.groups):
            raise RefitError(
                f"{name}: the delta is relative to {wanted}, but this engine's base is {self._had}: send all weights"
            )
        _apply(name, rest, header, self._base.groups[i])


class Patch(NamedTuple):
    """The changed bytes of a group since the last sync.

    Attributes:
        at: int64, offsets of the changed bytes in the group.
        values: uint8, the new bytes at these offsets.
        parts: counts, offsets and values, as bytes.
    """

    at: torch.Tensor
    values: torch.Tensor
    parts: list[torch.Tensor]

    @property
    def changed(self) -> int:
        """The number of bytes that changed."""
        return len(self.at)


def _patch(before: torch.Tensor, now: torch.Tensor) -> Patch | None:
    """Return the delta from the bytes `before` to `now`; None if the whole group is smaller."""
    at = (before != now).nonzero().view(-1)
    blocks = -(-now.numel() // BLOCK)
    if 4 * blocks + 3 * len(at) >= now.numel():
        return None
    values = now[at]
    counts = torch.bincount(at // BLOCK, minlength=blocks).to(torch.int32)
    places = (at % BLOCK).to(torch.int32).view(torch.uint8).view(-1, 4)[:, :2].reshape(-1)  # the low 16 bits
    return Patch(at, values, [counts.view(torch.uint8), places, values])


def _apply(name: str, rest: torch.Tensor, header: Header, base: torch.Tensor) -> None:
    blocks = -(-header.size // BLOCK)
    if base.numel() != header.size or rest.numel() != 4 * blocks + 3 * header.changed:
        raise RefitError(
            f"{name}: {rest.numel()} bytes are not a valid delta of {header.changed} changed bytes in {header.size}"
        )
    rest = rest.to(base.device)
    counts, places, values = torch.split(rest, [4 * blocks, 2 * header.changed, header.changed])
    of_each = counts.clone().view(torch.int32).to(torch.int64)
    if int(of_each.min()) < 0 or int(of_each.sum()) != header.changed:
        raise RefitError(f"{name}: the counts of its blocks do not add up to {header.changed}")
    block = torch.repeat_interleave(torch.arange(blocks, device=base.device), of_each)
    at = block * BLOCK + (places.clone().view(torch.int16).to(torch.int64) & (BLOCK - 1))
    if header.changed and int(at.max()) >= header.size:
        raise RefitError(f"{name}: an offset is beyond the group's {header.size} bytes")
    base[at] = values


def _as_bytes(header: Header, device: torch.device) -> torch.Tensor:
    return torch.tensor(header, dtype=torch.int64).view(torch.uint8).to(device)


def _header(name: str, blob: torch.Tensor) -> Header:
    if blob.dtype != torch.uint8 or blob.dim() != 1 or blob.numel() < HEADER_BYTES or blob.is_meta:
        raise RefitError(
            f"{name}: {blob.dtype} of shape {tuple(blob.shape)} is not uint8 with a header of {HEADER_BYTES} bytes"
        )
    header = Header(*blob[:HEADER_BYTES].cpu().clone().view(torch.int64).tolist())
    if header.format != FORMAT:
        raise RefitError(
            f"{name}: format {header.format}, but this side reads {FORMAT}: install the same ascend-quant on both sides"
        )
    if min(header) < 0:
        raise RefitError(f"{name}: its header is corrupted: {header}")
    return header
