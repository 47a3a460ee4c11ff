"""From the receipts of every engine worker to the metrics of one step, and the proof that the replicas agree."""

from ascend_quant.refit import RefitError

Receipt = dict[str, float]


def merge(replicas: list[list[Receipt | None]]) -> Receipt:
    """One step's metrics from each replica's receipts in the order of its tensor-parallel ranks."""
    receipts = [receipt for ranks in replicas for receipt in ranks]
    _check_all_there(replicas)
    _check_digests(replicas)
    return {
        **receipts[0],
        "refit/milliseconds": max(receipt["refit/milliseconds"] for receipt in receipts),
        "refit/nonfinite": sum(receipt["refit/nonfinite"] for receipt in receipts),
        "refit/proved": min(receipt["refit/proved"] for receipt in receipts),
        "refit/changed": sum(receipt["refit/changed"] for receipt in receipts) / len(receipts),
    }


def _check_all_there(replicas: list[list[Receipt | None]]) -> None:
    missing = [(i, rank) for i, ranks in enumerate(replicas) for rank, receipt in enumerate(ranks) if receipt is None]
    if missing:
        raise RefitError(
            f"no receipt from (replica, rank) {missing}: these engine workers never completed a refit, "
            "or vLLM built their model without the ascend_quant plugin"
        )


def _check_digests(replicas: list[list[Receipt]]) -> None:
    for rank, receipts in enumerate(zip(*replicas, strict=True)):
        digests = [receipt["refit/digest"] for receipt in receipts]
        if len(set(digests)) > 1:
            raise RefitError(
                f"the replicas serve different weights: digests {digests} at tensor-parallel rank {rank}. "
                "A replica missed a sync, or its memory is broken: restart the run"
            )
