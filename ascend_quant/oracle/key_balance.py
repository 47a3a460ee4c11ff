"""The definition of SmoothAttention's factors (outlier key channels), for a KV cache with one scale per token and head.

In such a cache, the step size of every channel is that of the largest one. If channel i of the keys is divided by s_i
and channel i of the queries multiplied by it, q k does not change. The variance of its error is (max_j m_j / s_j)^2
sum_i (a_i s_i)^2, up to a constant, where m_j is the largest |k_j| and a_i the magnitude of q_i. For a given maximum,
s_i = m_i is the smallest possible s_i, whatever the queries are. The step size of a large channel does not change, so
with n large channels out of D, about n / D of the variance remains.

Rotary embedding mixes channels i and j = i + D / 2, so both have the same factor. From the weights,

    offset_i = bias_i,  spread_i = |w_i g|_2      for row w_i; g is the weight of the RMSNorm before it
    m_i      = hypot(offset_i, offset_j) + 3 hypot(spread_i, spread_j) / sqrt(2)
    s_i      = max(1, 2 ** floor(log2(m_i / median of the head's m)))

3 is about the maximum of a hundred normal numbers; a token's scale follows its largest channel. This is only an
estimate of the activations, so channels below twice the median are not changed, and factors are rounded down: a factor
that is too small leaves some of the error, one that is too large increases the error of its channel. Powers of two are
exact in a floating-point type, through products, norms and rotation.

Shape suffixes: G key heads, D channels per head, P = D / 2 pairs, N = G D rows, K input channels.
"""

import torch

PEAK = 3.0
LARGEST = 2.0**15  # largest factor, which BF16 can represent
ROWS = 256  # rows at a time: float64 copies of all rows would exceed a refit's work space


def key_sizes(
    w_NK: torch.Tensor,
    input_norm_K: torch.Tensor,
    bias_N: torch.Tensor | None,
    k_norm_D: torch.Tensor | None,
    head: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return offset and spread (G, D), float64, of a key projection's output, after a per-head norm if any.

    Args:
        w_NK, input_norm_K, bias_N, k_norm_D: weights in any floating dtype; None if the model has none.
        head: head size D.
    """
    gain_K, rows = input_norm_K.double(), range(0, len(w_NK), ROWS)
    squares = [(w_NK[first : first + ROWS].double() * gain_K).square().sum(1) for first in rows]
    spread_GD = torch.cat(squares).sqrt().view(-1, head)
    offset_GD = torch.zeros_like(spread_GD) if bias_N is None else bias_N.double().view(-1, head)
    if k_norm_D is None:
        return offset_GD, spread_GD
    length_G1 = (offset_GD.square() + spread_GD.square()).mean(1, keepdim=True).sqrt()
    gain_GD = k_norm_D.double().abs() / length_G1
    return offset_GD * gain_GD, spread_GD * gain_GD


def key_balance(offset_GD: torch.Tensor, spread_GD: torch.Tensor, shared: bool = False) -> torch.Tensor:
    """Return the factors s (G, D), float32, by which keys are divided and the queries of their group multiplied.

    Args:
        shared: whether all heads have the same factors, from the root mean square of their m, since they share the
            norm's weights.
    """
    offset_2GP, spread_2GP = (torch.stack(one_GD.chunk(2, dim=1)) for one_GD in (offset_GD, spread_GD))
    peak_GP = offset_2GP.square().sum(0).sqrt() + PEAK * spread_2GP.square().mean(0).sqrt()
    if shared:
        peak_GP = peak_GP.square().mean(0, keepdim=True).sqrt().expand_as(peak_GP)
    ratio_GP = peak_GP / peak_GP.median(1, keepdim=True).values
    factor_GP = ratio_GP.log2().floor().exp2().clamp(1, LARGEST).nan_to_num(1.0)
    return torch.cat([factor_GP, factor_GP], dim=1).float()
