"""The workspace of products whose tiles several programs share, each a part of K: int32 sums, and who has arrived."""

from functools import cache

import torch

from ascend_quant.kernels.tuned import Tiles

COUNTERS = 1024  # tiles of one product that programs may share; more fill any GPU by themselves
SLOTS = 64  # streams with counters of their own


def workspace(
    tiles: Tiles, count: int, length: int, device: torch.device
) -> tuple[int, torch.Tensor | None, torch.Tensor | None]:
    """Into how many parts K is cut; where they are none, no workspace.

    Args:
        count: tiles of the product.
        length: K.

    Returns:
        parts, int32 for (count, parts, block_m, block_n) sums, and int32 zeros that kernels leave as zeros.
    """
    split = min(tiles.split_k, -(-length // tiles.block_k)) if count <= COUNTERS else 1
    if split == 1:
        return 1, None, None
    sums = torch.empty(count * split * tiles.block_m * tiles.block_n, dtype=torch.int32, device=device)
    return split, sums, counters(device)


def counters(device: torch.device) -> torch.Tensor:
    """COUNTERS zeros; each stream has its own, since products on two streams may run at once."""
    if device.type != "cuda":
        return _zeros(device)
    slots, stream = _slots(device), torch.cuda.current_stream(device).cuda_stream
    if stream in slots:
        return slots[stream]
    if not slots and not torch.cuda.is_current_stream_capturing():
        slots[None] = torch.zeros(SLOTS, COUNTERS, dtype=torch.int32, device=device)
        torch.cuda.synchronize(device)  # other streams will find them zeroed
    if not 0 < len(slots) <= SLOTS:
        return _zeros(device)  # a graph's own then, zeroed at each replay
    slots[stream] = slots[None][len(slots) - 1]
    return slots[stream]


def _zeros(device: torch.device) -> torch.Tensor:
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


@cache
def _slots(device: torch.device) -> dict[int | None, torch.Tensor]:
    """Counters by stream; at None the tensor that they are rows of, once it is there."""
    return {}
