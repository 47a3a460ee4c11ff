"""Log-probabilities of an exact engine: torch's log_softmax of float32 logits, as in a trainer.

vLLM's first model runner already does so; the second one has its own kernels.

Shape suffixes: T rows of logits, V vocabulary size, C chosen tokens, R requests.
"""

from collections.abc import Callable

import torch

ROWS = 512  # rows at a time: two times 0.3 GiB of float32 for a vocabulary of 152,064


def by_torch(original: Callable) -> Callable:
    """Replace `compute_token_logprobs` by torch's log_softmax of float32 logits."""

    def compute_token_logprobs(logits_TV: torch.Tensor, token_ids_TC: torch.Tensor) -> torch.Tensor:
        """Return the log-probabilities of the chosen tokens, float32 (T, C)."""
        rows = zip(logits_TV.split(ROWS), token_ids_TC.to(torch.int64).split(ROWS), strict=True)
        return torch.cat([logits.float().log_softmax(-1).gather(-1, chosen) for logits, chosen in rows])

    return compute_token_logprobs


def divided_by_torch(original: Callable) -> Callable:
    """Replace `apply_temperature` by torch's division, float32 in place; temperature 0 (greedy) divides by 1."""

    def apply_temperature(logits_TV: torch.Tensor, request_T: torch.Tensor, temperature_R: torch.Tensor) -> None:
        temperature_T = temperature_R[request_T.long()]
        logits_TV.div_(temperature_T.masked_fill(temperature_T == 0, 1.0).unsqueeze(-1))

    return apply_temperature
