"""Reference implementation of the int8 KV cache, with a scale per token and head, and of attention over it.

A row contains the D numbers of one token's key (or value) for one head. It is quantized like a token's activations:
scale = absmax / 127 in float32, code = round-half-even(x / scale) in [-127, 127]; a row of zeros has scale 0 and codes
0; a row with NaN or Inf has a non-finite scale and undefined codes, so attention to it gives NaN.

Shape suffixes: B sequences, T tokens, H query heads, G key/value heads, D head size.
"""

import torch

from ascend_quant.schemes.arithmetic import quantize_rows


def quantize_cache(x_TGD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 codes (T, G, D) and float32 scales (T, G) of keys or values."""
    codes, scale = quantize_rows(x_TGD.reshape(-1, x_TGD.shape[-1]))
    return codes.view(x_TGD.shape), scale.view(x_TGD.shape[:-1])


def dequantize_cache(codes_TGD: torch.Tensor, scale_TG: torch.Tensor) -> torch.Tensor:
    """Return the float32 values of codes and scales."""
    return codes_TGD.float() * scale_TG.unsqueeze(-1)


def decode_attention(
    q_BHD: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor], softmax_scale: float
) -> torch.Tensor:
    """Compute attention of one new token of each sequence over all of its tokens, float64 (B, H, D).

    Args:
        keys, values: (tokens, G, D) for each sequence, in any floating dtype; the output for a sequence without tokens
            is 0.
    """
    out = torch.zeros(q_BHD.shape, dtype=torch.float64, device=q_BHD.device)
    for row, (k_TGD, v_TGD) in enumerate(zip(keys, values, strict=True)):
        if len(k_TGD):
            group = q_BHD.shape[1] // k_TGD.shape[1]
            k_THD, v_THD = (x.double().repeat_interleave(group, 1) for x in (k_TGD, v_TGD))
            weights_HT = (torch.einsum("hd,thd->ht", q_BHD[row].double(), k_THD) * softmax_scale).softmax(1)
            out[row] = torch.einsum("ht,thd->hd", weights_HT, v_THD)
    return out
