"""Comparison of the trainer's log-probabilities with the engine's, token by token, as float32 bits.

Shape suffixes: R rows (answers), S tokens of the longest one.
"""

from typing import NamedTuple

import torch


class Compared(NamedTuple):
    """The result of comparing a batch's tokens.

    Attributes:
        tokens: number of compared tokens.
        unequal: number of tokens whose bits differ.
        max_diff: largest absolute difference, in nats; infinite if a value is not finite.
        k3_kl: the k3 estimate of the KL from engine to trainer, in nats per token: the mean of exp(d) - 1 - d, where d
            is the trainer's value minus the engine's; 0 without tokens, infinite if a value is not finite.
        first: row and position of the first token that differs, in row-major order; None if none does.
    """

    tokens: int
    unequal: int
    max_diff: float
    k3_kl: float
    first: tuple[int, int] | None

    def as_metrics(self) -> dict[str, float]:
        """Return the metrics under the names that verl logs."""
        return {f"exact/{name}": getattr(self, name) for name in ("tokens", "unequal", "max_diff", "k3_kl")}


def compare(engine_RS: torch.Tensor, trainer_RS: torch.Tensor, mask_RS: torch.Tensor) -> Compared:
    """Compare log-probabilities of the same tokens.

    Args:
        engine_RS, trainer_RS: float32.
        mask_RS: nonzero for tokens that the policy sampled.

    Raises:
        TypeError: a dtype other than float32, whose bits cannot be compared.
        ValueError: the shapes differ.
    """
    if (dtypes := (engine_RS.dtype, trainer_RS.dtype)) != (torch.float32, torch.float32):
        raise TypeError(f"log-probabilities of engine and trainer must be float32, not {dtypes}")
    if len(shapes := {tuple(tensor.shape) for tensor in (engine_RS, trainer_RS, mask_RS)}) > 1:
        raise ValueError(f"log-probabilities and mask must have the same shape, not {sorted(shapes)}")
    mask_RS = mask_RS.bool()
    engine_RS, trainer_RS = engine_RS.detach(), trainer_RS.detach()
    other_RS = (engine_RS.view(torch.int32) != trainer_RS.view(torch.int32)) & mask_RS
    places = other_RS.nonzero()
    difference = (trainer_RS - engine_RS)[other_RS].double()
    difference = difference.where(difference.isfinite(), torch.inf)
    tokens = int(mask_RS.sum())
    return Compared(
        tokens=tokens,
        unequal=len(places),
        max_diff=difference.abs().max().item() if len(places) else 0.0,
        k3_kl=(difference.expm1() - difference).nan_to_num(torch.inf, torch.inf).sum().item() / max(tokens, 1),
        first=tuple(places[0].tolist()) if len(places) else None,
    )
