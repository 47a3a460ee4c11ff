"""Log-probabilities of the chosen tokens, many rows at a time, in the place of flash-attn's cross entropy.

Without flash-attn verl 0.9.1 takes them in a Python loop over rows, each a softmax that is kept for the backward pass:
7 kernels and 4 bytes a logit for each token. Here the logits themselves are kept and one float a row, and the backward
pass can write the gradient over them.

Shape suffixes: T tokens, V words of the vocabulary.
"""

import torch
from torch.autograd.function import once_differentiable

ROWS = 1024  # at a time; 0.6 GiB of float32 for a vocabulary of 152,064


def cross_entropy_loss(
    logits_TV: torch.Tensor, labels_T: torch.Tensor, inplace_backward: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """-log softmax(logits)[label] of each row; called as flash-attn's function of this name.

    Args:
        logits_TV: any float dtype; computed with in float32 (float64 in itself).
        labels_T: int64, each in [0, V).
        inplace_backward: write the gradient over the logits: for callers that use them no more.

    Returns:
        The losses, (T,), float32 (of float64 logits float64), and flash-attn's second result, which is zero here.
    """
    losses_T = _CrossEntropy.apply(logits_TV, labels_T, inplace_backward)
    return losses_T, torch.zeros_like(losses_T)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_TV, labels_T, in_place):
        sums_T = [_exact(rows).logsumexp(-1) for rows in logits_TV.split(ROWS)]
        sums_T = torch.cat(sums_T) if sums_T else _exact(logits_TV.new_empty(0))
        ctx.save_for_backward(logits_TV, labels_T, sums_T)
        ctx.in_place = in_place
        return sums_T - _exact(logits_TV.gather(-1, labels_T.unsqueeze(-1)).squeeze(-1))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_T):
        """grad * (softmax - one at the label)."""
        logits_TV, labels_T, sums_T = ctx.saved_tensors
        out_TV = logits_TV if ctx.in_place else torch.empty_like(logits_TV)
        for first in range(0, len(labels_T), ROWS):
            part = slice(first, first + ROWS)
            scale = grad_T[part].unsqueeze(-1)
            rows = (_exact(logits_TV[part]) - sums_T[part].unsqueeze(-1)).exp_().mul_(scale)
            out_TV[part] = rows.scatter_add_(-1, labels_T[part].unsqueeze(-1), -scale)
        return out_TV, None, None


def _exact(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()
