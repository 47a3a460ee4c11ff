"""Log-probabilities of chosen tokens, computed as the engine's sampler does: log_softmax of float32 logits.

vLLM divides float32 logits by the temperature (`logprobs_mode=processed_logprobs`) and takes `log_softmax` of whole
rows; `logit - logsumexp` differs from it in the last bit. verl's engine sets the logits of entries without a token (399
of Qwen2.5's 152,064) to -inf, so they are never sampled. Many rows are processed at a time, and only the logits are
kept for the backward pass.

Shape suffixes: T tokens, V vocabulary size.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

ROWS = 512  # rows at a time: two times 0.3 GiB of float32 for a vocabulary of 152,064


def log_probs_of(
    logits_TV: torch.Tensor,
    labels_T: torch.Tensor,
    temperature: float = 1.0,
    in_place: bool = False,
    words: int | None = None,
) -> torch.Tensor:
    """Return log softmax(logits / temperature)[label] for each row, (T,), float32 (float64 for float64 logits).

    Args:
        logits_TV: any float dtype; computed in float32 (float64 in float64).
        labels_T: int64, each in [0, V).
        in_place: write the gradient over the logits, if the caller does not use them again.
        words: number of entries that can be sampled, the first of the vocabulary. [default: all]
    """
    return _LogProbs.apply(logits_TV, labels_T, temperature, in_place, words)


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits_TV: torch.Tensor,
        labels_T: torch.Tensor,
        temperature: float,
        in_place: bool,
        words: int | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(logits_TV, labels_T)
        ctx.temperature, ctx.in_place, ctx.words = temperature, in_place, words
        found = [
            _scaled(rows, temperature, words).log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
            for rows, labels in zip(logits_TV.split(ROWS), labels_T.split(ROWS), strict=True)
        ]
        return torch.cat(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_T: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return grad * (one_hot(label) - softmax) / temperature."""
        logits_TV, labels_T = ctx.saved_tensors
        out_TV = logits_TV if ctx.in_place else torch.empty_like(logits_TV)
        for first in range(0, len(labels_T), ROWS):
            part = slice(first, first + ROWS)
            scale = (grad_T[part] / ctx.temperature).unsqueeze(-1)
            rows = _scaled(logits_TV[part], ctx.temperature, ctx.words).softmax(-1).mul_(-scale)
            out_TV[part] = rows.scatter_add_(-1, labels_T[part].unsqueeze(-1), scale)
        return out_TV, None, None, None, None


def _scaled(rows: torch.Tensor, temperature: float, words: int | None) -> torch.Tensor:
    """Return float32 logits over temperature, with padding entries at -inf; `rows` is not changed."""
    scaled = rows if rows.dtype == torch.float64 else rows.float()
    if temperature != 1:
        scaled = scaled / torch.tensor(temperature, dtype=scaled.dtype, device=rows.device)
    if words is None or words >= rows.shape[-1]:
        return scaled
    scaled = scaled.clone() if scaled is rows else scaled
    scaled[..., words:] = -torch.inf
    return scaled
