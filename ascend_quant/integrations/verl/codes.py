"""Which weights a trainer may send as codes: those that every engine worker quantizes row by row, or has no place for.

The workers say so of the tensors of their last sync, so nobody has to know which layers an engine of which version
leaves in their own dtype.
"""

from collections.abc import Iterable, Sequence

from ascend_quant.refit import RefitError
from ascend_quant.schemes import Scheme

Answer = tuple[str, Sequence[str], Sequence[str]]  # a worker's scheme, the names that it takes as codes, and the others


def agreed(scheme: Scheme, workers: Iterable[Answer]) -> frozenset[str]:
    """The names to be sent as codes of a scheme.

    Raises:
        RefitError: a worker quantizes to another scheme, or none takes any.
    """
    taken: set[str] = set()
    refused: set[str] = set()
    for served, takes, refuses in workers:
        if served != scheme.name:
            raise RefitError(
                f"send={scheme.name}, but a rollout engine serves {served}: give all replicas the scheme "
                f"{scheme.name}, or leave send out"
            )
        taken.update(takes)
        refused.update(refuses)
    if not taken - refused:
        raise RefitError(
            f"send={scheme.name}, but the rollout engines take no weight as codes (experts that move between ranks "
            "have no lasting place): leave send out"
        )
    return frozenset(taken - refused)
