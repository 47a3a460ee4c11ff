"""CPU kernels: the oracle in chunks of rows, with torch's int8 matrix product.

Chunks keep the float32 work space small and in cache: 256 rows of a 172 MiB shard need 24 MiB, not 778 MiB.
"""

import logging
from collections.abc import Sequence
from itertools import chain

import torch
import torch.nn.functional as F

from ascend_quant import oracle
from ascend_quant.kernels.float32_head import float32_product  # noqa: F401  offered here too
from ascend_quant.kernels.moves import Counters, Job, Move, sampled

logger = logging.getLogger(__name__)

READS_ARE_FREE = True

ROWS = 256
ELEMENTS = 1 << 20


def write(batch: Sequence[Job], counters: Counters, receipt: bool = True) -> None:
    """Carry out a batch of moves, a few rows at a time.

    Args:
        receipt: whether changed codes and the digest are counted; non-finite elements always are.
    """
    for move, source, slot in chain.from_iterable(job.each() for job in batch):
        matrix, whole = move.matrix(source), move.whole_rows(source)
        if matrix.numel() == 0:
            continue
        whole = matrix if whole is None else whole
        rows_at_once = ROWS if move.scale is not None else max(1, ELEMENTS // matrix.shape[1])
        chunks = [slice(start, start + rows_at_once) for start in range(0, matrix.shape[0], rows_at_once)]
        one_scale = move.scale is not None and move.scale.dim() == 0
        tops = [_absmax(move.values(whole[rows])).max() for rows in chunks] if one_scale else []
        tensor_absmax = torch.stack(tops).max() if one_scale else None
        for rows in chunks:
            part, absmax = matrix[rows], None if move.scale is None else _absmax(move.values(whole[rows]))
            if move.given_N is not None:
                scale = move.given_N[rows]
                values, lost = oracle.quantize_given(part, scale)
                counters.totals[0, 3] += lost.sum() * receipt
            else:
                values, scale = _converted(part, tensor_absmax if one_scale else absmax, move)
            counters.bad_of(slot).add_(_bad(values) if absmax is None else _bad(move.values(part), absmax))
            if receipt:
                _account(values, scale, rows.start, move, counters)
            move.target_NK[rows].copy_(values)
            if scale is not None:
                _rows_of_scale(move, rows.start, len(part)).copy_(scale)


def _absmax(values: torch.Tensor) -> torch.Tensor:
    return values.float().abs().amax(dim=-1)


def _bad(rounded: torch.Tensor, absmax: torch.Tensor | None = None) -> int:
    """How many elements are not finite; at least 1 if one is elsewhere in the whole rows, which spoils their absmax."""
    bad = int((~torch.isfinite(rounded)).sum())
    return bad or int(absmax is not None and not torch.isfinite(absmax).all())


def _converted(part: torch.Tensor, absmax: torch.Tensor | None, move: Move) -> tuple[torch.Tensor, torch.Tensor | None]:
    if move.scale is None:
        return part.to(move.target_NK.dtype), None
    if move.target_NK.dtype == torch.int8:
        return oracle.quantize_rows(move.values(part), absmax)
    if move.scale.dim() == 2:
        return oracle.quantize_fp8_blocks(part)
    codes, scale = oracle.quantize_fp8_rows(part, None if absmax is None else absmax.expand(part.shape[0]))
    return codes, scale if move.scale.dim() else scale[0]


def _rows_of_scale(move: Move, start: int, count: int) -> torch.Tensor:
    if move.scale.dim() == 0:
        return move.scale
    per = oracle.BLOCK if move.scale.dim() == 2 else 1
    return move.scale[start // per : -(-(start + count) // per)]


def _account(values: torch.Tensor, scale: torch.Tensor | None, start: int, move: Move, counters: Counters) -> None:
    """Count the changed codes and the digest of rows that are about to be written."""
    first = move.first_row + start
    low_high = _sums(values, first)
    if scale is not None:
        compared = sampled(first, len(values))
        old = move.target_NK[start : start + len(values)][compared].view(torch.int8)
        counters.totals[0, 0] += (old != values[compared].view(torch.int8)).sum()
        if scale.dim() or start == 0:
            per = oracle.BLOCK if scale.dim() == 2 else 1
            low_high += 3 * _sums(scale if scale.dim() == 2 else scale.view(-1, 1), first // per if scale.dim() else 0)
    counters.totals[0, 1:3] += low_high * move.weight % oracle.LANE


def _sums(values_NK: torch.Tensor, first_row: int, first_column: int = 0) -> torch.Tensor:
    """Both sums of `oracle.digest`, int64 in [0, 2**32)."""
    bits_NK = oracle.as_integers(values_NK).to(torch.int64)
    sum_N = (bits_NK * oracle.column_weights(first_column, bits_NK.shape[1], bits_NK.device)).sum(1) % oracle.LANE
    rows = (oracle.row_weights(first_row, len(sum_N), sum_N.device, seed) for seed in oracle.ROW_SEEDS)
    return torch.stack([(sum_N * row_N % oracle.LANE).sum() for row_N in rows]) % oracle.LANE


def digests(
    tensors: Sequence[torch.Tensor], first_rows: Sequence[int] = (), first_columns: Sequence[int] = ()
) -> torch.Tensor:
    """`oracle.digest` of each tensor as int64 (its 64 bits), a few rows at a time."""
    found = torch.zeros(len(tensors), 2, dtype=torch.int64)
    for i, tensor in enumerate(tensors):
        matrix = oracle.as_matrix(tensor)
        step = max(1, ELEMENTS // max(1, matrix.shape[1]))
        for start in range(0, matrix.shape[0], step):
            first = (first_rows[i] if first_rows else 0) + start
            found[i] += _sums(matrix[start : start + step], first, first_columns[i] if first_columns else 0)
    return found[:, 0] % oracle.LANE + (found[:, 1] << 32)


def matmul(
    x: torch.Tensor, codes_NK: torch.Tensor, scale_N: torch.Tensor, bias_N: torch.Tensor | None = None
) -> torch.Tensor:
    """The W8A8 product of `oracle.matmul` for x (..., K), in x's dtype."""
    x_codes_MK, x_scale_M = oracle.quantize_rows(x.reshape(-1, x.shape[-1]))
    out_MN = _scaled_product(x_codes_MK, x_scale_M, codes_NK, scale_N)
    if bias_N is not None:
        out_MN = out_MN + bias_N.float()
    return out_MN.to(x.dtype).view(*x.shape[:-1], codes_NK.shape[0])


def experts(
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13_codes_ENK: torch.Tensor,
    w13_scale_EN: torch.Tensor,
    w2_codes_EKN: torch.Tensor,
    w2_scale_EK: torch.Tensor,
    local_G: torch.Tensor | None = None,
) -> torch.Tensor:
    """The mixture of `oracle.experts`, in x's dtype; each token is quantized once for all its experts.

    Args:
        expert_MT: experts that the router chose, below E, or below G where `local_G` is given.
        local_G: int32, the index into E of each of the model's G experts, -1 for those of other ranks.
    """
    expert_MT = expert_MT if local_G is None else local_G[expert_MT]
    out_MK = torch.zeros(x_MK.shape, dtype=torch.float32, device=x_MK.device)
    x_codes_MK, x_scale_M = oracle.quantize_rows(x_MK)
    for expert in range(w13_codes_ENK.shape[0]):
        token, slot = (expert_MT == expert).nonzero(as_tuple=True)
        if token.numel() == 0:
            continue
        gate_up = _scaled_product(x_codes_MK[token], x_scale_M[token], w13_codes_ENK[expert], w13_scale_EN[expert])
        gate, up = gate_up.chunk(2, dim=-1)
        hidden_codes, hidden_scale = oracle.quantize_rows(F.silu(gate) * up)
        down = _scaled_product(hidden_codes, hidden_scale, w2_codes_EKN[expert], w2_scale_EK[expert])
        out_MK.index_add_(0, token, down * weight_MT[token, slot].float().unsqueeze(-1))
    return out_MK.to(x_MK.dtype)


def int_mm_is_exact() -> bool:
    """Whether torch._int_mm is exact on this processor, tried with the largest codes.

    Without VNNI, some builds add pairs of products in int16, which saturates.
    """
    x, w = torch.full((2, 64), 127, dtype=torch.int8), torch.full((3, 64), -127, dtype=torch.int8)
    exact = bool((torch._int_mm(x, w.t()) == -127 * 127 * 64).all())
    if not exact:
        logger.warning("torch._int_mm saturates on this processor: int8 products run in float64, exact but slow")
    return exact


INT_MM_IS_EXACT = int_mm_is_exact()  # once, at import: torch.compile traces what calls it
PRODUCT = "torch._int_mm" if INT_MM_IS_EXACT else "torch in float64"


def _integer_product(x_codes_MK: torch.Tensor, codes_NK: torch.Tensor) -> torch.Tensor:
    if codes_NK.shape[1] == 1:  # torch 2.13's _int_mm is wrong for K = 1
        return x_codes_MK.int() * codes_NK.int().T
    if INT_MM_IS_EXACT:
        return torch._int_mm(x_codes_MK, codes_NK.t())
    return x_codes_MK.double() @ codes_NK.double().T


def _scaled_product(
    x_codes_MK: torch.Tensor, x_scale_M: torch.Tensor, codes_NK: torch.Tensor, scale_N: torch.Tensor
) -> torch.Tensor:
    sum_MN = _integer_product(x_codes_MK, codes_NK)
    return sum_MN.float() * x_scale_M.unsqueeze(-1) * scale_N


def plain_experts(
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13_ENK: torch.Tensor,
    w2_EKN: torch.Tensor,
    local_G: torch.Tensor | None = None,
) -> torch.Tensor:
    """The mixture of experts without quantization, each product in x's dtype, summed in float32; see `experts`."""
    expert_MT = expert_MT if local_G is None else local_G[expert_MT]
    out_MK = torch.zeros(x_MK.shape, dtype=torch.float32, device=x_MK.device)
    for expert in range(w13_ENK.shape[0]):
        token, slot = (expert_MT == expert).nonzero(as_tuple=True)
        if token.numel() == 0:
            continue
        gate, up = F.linear(x_MK[token], w13_ENK[expert]).chunk(2, dim=-1)
        down = F.linear(F.silu(gate) * up, w2_EKN[expert])
        out_MK.index_add_(0, token, down.float() * weight_MT[token, slot].float().unsqueeze(-1))
    return out_MK.to(x_MK.dtype)
