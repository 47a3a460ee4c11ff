"""A mixture of int8 experts on CUDA: five launches per layer, whose tiles depend only on the number of tokens.

    prepare          quantized tokens; their (token, expert) pairs sorted by expert          triton_routing.py
    gate_up          h = silu(gate) * up of each pair, in float32                             triton_grouped.py
    quantize_pairs   codes of h
    down             each pair's output times its routing weight, in x's dtype
    combine          the sum over a token's pairs

Codes, sums and scales are those of `oracle.experts`, with three differences: the GPU's exponential in silu has an error
of 2 ulp, so codes of h may be off by one; each pair's output is rounded to x's dtype; and the sum runs over slots, not
experts.
"""

from typing import NamedTuple

import torch
import triton

from ascend_quant.kernels import tuned
from ascend_quant.kernels.cuda.serve import triton_grouped, triton_routing
from ascend_quant.kernels.cuda.serve.triton_tokens import tiling
from ascend_quant.kernels.cuda.triton_early import launch, starts_early
from ascend_quant.kernels.tuned import Choice, GroupedTiles

Shape = tuple[int, int, int, int]  # number of experts on all ranks, width, hidden size, top_k

FEWEST_TOKENS = 16  # a power of two; fewer tokens use the same kernels
COMBINED = 512  # columns per program of `combine`
SORTING_WARPS = 8
_SEEN: dict[Shape, int] = {}  # the number of tokens up to which kernels are compiled


def experts(
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13_codes_ENK: torch.Tensor,
    w13_scale: torch.Tensor,
    w2_codes_EKN: torch.Tensor,
    w2_scale: torch.Tensor,
    local_G: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the mixture of `oracle.experts`, (M, K) in x's dtype; the result is deterministic.

    Args:
        x_MK: BF16, FP16 or float32.
        weight_MT: any float dtype.
        expert_MT: int32 or int64, the routed experts, below E, or below G with `local_G`; others contribute nothing.
        w13_codes_ENK, w2_codes_EKN: int8, contiguous.
        w13_scale, w2_scale: float32, contiguous, one per row.
        local_G: int32, maps each of the model's G experts to its index in E, or to -1 on other ranks.
    """
    experts_of_all, (hidden, width) = (w2_codes_EKN if local_G is None else local_G).shape[0], w2_codes_EKN.shape[1:]
    tokens, top = expert_MT.shape
    shape, rest = (experts_of_all, width, hidden, top), (w13_codes_ENK, w13_scale, w2_codes_EKN, w2_scale, local_G)
    if x_MK.is_cuda and tokens > _SEEN.get(shape, 0) and not torch.cuda.is_current_stream_capturing():
        _compile_up_to(tokens, shape, x_MK, weight_MT, expert_MT, rest)
    return mixture(x_MK, weight_MT, expert_MT, *rest, tiles_for(shape, tokens, x_MK.device))


def _compile_up_to(tokens: int, shape: Shape, x_MK, weight_MT, expert_MT, rest: tuple) -> None:
    """Compile the kernels for all smaller numbers of tokens, since an engine's first call is its largest."""
    sizes = (1 << power for power in range(FEWEST_TOKENS.bit_length() - 1, tokens.bit_length()))
    for fewer in sizes:
        if _SEEN.get(shape, 0) < fewer < tokens:
            x, weight = x_MK.new_zeros(fewer, x_MK.shape[1]), weight_MT.new_zeros(fewer, shape[3])
            nobody = expert_MT.new_full((fewer, shape[3]), -1)
            mixture(x, weight, nobody, *rest, tiles_for(shape, fewer, x_MK.device))
    _SEEN[shape] = tokens


def mixture(
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13_codes_ENK: torch.Tensor,
    w13_scale: torch.Tensor,
    w2_codes_EKN: torch.Tensor,
    w2_scale: torch.Tensor,
    local_G: torch.Tensor | None,
    tiles: GroupedTiles,
) -> torch.Tensor:
    """Compute `experts` with the given tiles."""
    x_MK = x_MK if x_MK.stride(1) == 1 else x_MK.contiguous()
    weight_MT, expert_MT = weight_MT.contiguous(), expert_MT.contiguous()
    out_MK = torch.empty(x_MK.shape, dtype=x_MK.dtype, device=x_MK.device)
    if not expert_MT.numel():
        return out_MK.zero_()
    with torch.cuda.device_of(x_MK):
        codes, places = sorted_codes(x_MK, expert_MT, local_G, w2_codes_EKN.shape[0], tiles)
        h_PN = gated(codes, w13_codes_ENK, w13_scale, expert_MT, places, tiles)
        h_codes = quantized(h_PN, tiles)
        parts_PK = outputs(h_codes, w2_codes_EKN, w2_scale, weight_MT, places, x_MK.dtype, tiles)
        combined(parts_PK, expert_MT, local_G, w2_codes_EKN.shape[0], out_MK, tiles)
    return out_MK


class Places(NamedTuple):
    """The sorted (token, expert) pairs of a fused MoE and the expert of each block, see `triton_routing.prepare`."""

    pair_at: torch.Tensor
    expert_of: torch.Tensor


def sorted_codes(x_MK, expert_MT, local_G, experts_here: int, tiles: GroupedTiles):
    """Return codes (M, K) and scales (M) of the tokens, and their pairs sorted by expert."""
    (tokens, hidden), top, device = x_MK.shape, expert_MT.shape[1], x_MK.device
    pairs = tokens * top
    blocks = triton_routing.most_blocks(pairs, experts_here, tiles.block_m)
    codes_MK = torch.empty(x_MK.shape, dtype=torch.int8, device=device)
    scale_M = torch.empty(tokens, dtype=torch.float32, device=device)
    pair_at = torch.empty((blocks, tiles.block_m), dtype=torch.int32, device=device)
    expert_of = torch.empty(blocks + 1, dtype=torch.int32, device=device)
    segment, (local, length) = triton_routing.segment_of(pairs), _map(expert_MT, local_G)
    segments, bins = triton.cdiv(pairs, segment), triton.next_power_of_2(experts_here)
    constants, started = (experts_here, bins, length), launch(tiles.pdl)
    counts = expert_of  # not read if there is one segment
    if segments > 1:
        counts = torch.empty((segments, bins), dtype=torch.int32, device=device)
        triton_routing.count[(segments,)](
            expert_MT, local, counts, pairs, *constants, segment, tiles.pdl, num_warps=SORTING_WARPS, **started
        )
    triton_routing.prepare[(max(experts_here * segments, tokens), 2)](
        x_MK, codes_MK, scale_M, expert_MT, local, counts, pair_at, expert_of,
        x_MK.stride(0), tokens, blocks, segments, hidden, tiling(hidden)[0], top, *constants,
        tiles.block_m, segment, segments > 1, tiles.pdl, num_warps=SORTING_WARPS, **started,
    )  # fmt: skip
    return (codes_MK, scale_M), Places(pair_at, expert_of)


def gated(codes, w13_codes_ENK, w13_scale, expert_MT, places: Places, tiles: GroupedTiles) -> torch.Tensor:
    """Return h (pairs, width) in float32."""
    (a_codes, scale_M), (pairs, top) = codes, (expert_MT.numel(), expert_MT.shape[1])
    width, blocks = w13_codes_ENK.shape[1] // 2, places.expert_of.shape[0] - 1
    h_PN = torch.empty((pairs, width), dtype=torch.float32, device=a_codes.device)
    triton_grouped.gate_up[(blocks * triton.cdiv(2 * width, tiles.up_n),)](
        a_codes, scale_M, w13_codes_ENK, w13_scale, h_PN, places.pair_at, places.expert_of, pairs, blocks,
        a_codes.shape[1], width, top, tiles.block_m, tiles.up_n, tiles.up_k, tiles.up_group, tiles.up_swap, tiles.pdl,
        num_warps=tiles.up_warps, num_stages=tiles.up_stages, **launch(tiles.pdl),
    )  # fmt: skip
    return h_PN


def quantized(h_PN: torch.Tensor, tiles: GroupedTiles) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes (pairs, width) and scales (pairs) of h."""
    pairs, width = h_PN.shape
    codes = torch.empty((pairs, width), dtype=torch.int8, device=h_PN.device)
    scale_P = torch.empty(pairs, dtype=torch.float32, device=h_PN.device)
    step, warps = (256, 1) if width <= 1024 else (1024, 4)
    triton_grouped.quantize_pairs[(pairs,)](
        h_PN, codes, scale_P, width, step, tiles.pdl, num_warps=warps, **launch(tiles.pdl)
    )
    return codes, scale_P


def outputs(h_codes, w2_codes_EKN, w2_scale, weight_MT, places: Places, dtype: torch.dtype, tiles: GroupedTiles):
    """Return each pair's weighted output (pairs, K)."""
    (codes, scale_P), (hidden, width) = h_codes, w2_codes_EKN.shape[1:]
    pairs, blocks = scale_P.shape[0], places.expert_of.shape[0] - 1
    parts_PK = torch.empty((pairs, hidden), dtype=dtype, device=codes.device)
    triton_grouped.down[(blocks * triton.cdiv(hidden, tiles.down_n),)](
        codes, scale_P, w2_codes_EKN, w2_scale, weight_MT, parts_PK, places.pair_at, places.expert_of, pairs, blocks,
        hidden, width, tiles.block_m, tiles.down_n, tiles.down_k, tiles.down_group, tiles.down_swap, tiles.pdl,
        num_warps=tiles.down_warps, num_stages=tiles.down_stages, **launch(tiles.pdl),
    )  # fmt: skip
    return parts_PK


def combined(parts_PK, expert_MT, local_G, experts_here: int, out_MK, tiles: GroupedTiles) -> None:
    """Sum each token's outputs into `out_MK`."""
    (tokens, hidden), (local, length) = out_MK.shape, _map(expert_MT, local_G)
    columns = min(triton.next_power_of_2(hidden), COMBINED)
    triton_grouped.combine[(tokens, triton.cdiv(hidden, columns))](
        parts_PK, expert_MT, local, out_MK, tokens, hidden, expert_MT.shape[1], experts_here, length, columns,
        tiles.pdl, num_warps=2, **launch(tiles.pdl),
    )  # fmt: skip


def _map(expert_MT, local_G) -> tuple[torch.Tensor, int]:
    """Return the map of experts and its length; without a map, a placeholder pointer and 0."""
    return (expert_MT, 0) if local_G is None else (local_G, local_G.shape[0])


def tiles_for(shape: Shape, tokens: int, device: torch.device) -> GroupedTiles:
    """Return the tuned tiles for a shape on this GPU, or else `usual_tiles`."""
    choice, early = tuned.find("experts", shape, tokens) if device.type == "cuda" else None, starts_early(device)
    if choice is None:
        return usual_tiles(shape, tokens)._replace(pdl=early)
    return tiles_of(choice) if early else tiles_of(choice)._replace(pdl=False)


def tiles_of(choice: Choice) -> GroupedTiles:
    """Return the tiles of one of the tuner's choices."""
    return GroupedTiles(**{name: value for name, value in choice.items() if name != "by"})


def usual_tiles(shape: Shape, tokens: int) -> GroupedTiles:
    """Return tiles for an untuned shape, by pairs per expert; they fit every GPU from sm80 on."""
    pairs_each = tokens * shape[3] / shape[0]
    if pairs_each <= 8:
        return GroupedTiles(16, 64, 256, 4, 3, 1, False, 128, 256, 4, 3, 1, False, False)
    if pairs_each <= 24:
        return GroupedTiles(32, 64, 256, 4, 3, 1, False, 128, 128, 4, 3, 1, False, False)
    if pairs_each <= 192:
        return GroupedTiles(64, 128, 128, 8, 4, 8, False, 128, 128, 4, 3, 8, False, False)
    return GroupedTiles(128, 128, 128, 4, 3, 8, False, 128, 128, 8, 3, 8, False, False)
