"""Log-probabilities of the chosen tokens, for many rows at a time, instead of flash-attn's cross entropy.

Without flash-attn, verl 0.9.1 loops over rows in Python, and keeps a softmax per row for the backward pass: 7 kernels
per token, and 4 bytes per logit. Here only the logits are kept, and the backward pass can write the gradient over them.
The values are those of the engine's sampler, see `ascend_quant/exact/log_probs.py`.
"""

import torch

from ascend_quant.exact import log_probs_of


def cross_entropy_loss(
    logits_TV: torch.Tensor, labels_T: torch.Tensor, inplace_backward: bool = False, words: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute -log softmax(logits)[label] for each row, with the signature of flash-attn's function of this name.

    Args:
        logits_TV: any float dtype; computed in float32 (float64 in float64).
        labels_T: int64, each in [0, V).
        inplace_backward: write the gradient over the logits, if the caller does not use them again.
        words: see `log_probs_of`.

    Returns:
        The losses (T,) in float32 (float64 for float64 logits), and flash-attn's second result, which is zero here.
    """
    losses_T = -log_probs_of(logits_TV, labels_T, in_place=inplace_backward, words=words)
    return losses_T, torch.zeros_like(losses_T)
