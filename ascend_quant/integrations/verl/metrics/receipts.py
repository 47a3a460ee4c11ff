"""From the receipts of every engine worker to the metrics of one step, and the proof that the replicas agree.

With several replicas there are the same figures for each: refit/replica0/milliseconds beside refit/milliseconds.
"""

from statistics import fmean

from ascend_quant.refit import RefitError

Receipt = dict[str, float]
PREFIX = "refit/"
DIGESTS = {"refit/digest": "weights", "refit/kv_scales/digest": "scales of the KV cache"}
COMBINED = {  # what is neither here nor alike everywhere is the first one's
    "refit/milliseconds": max,
    "refit/kernel_ms": max,
    "refit/wait_ms": max,
    "refit/memory_ms": max,
    "refit/nonfinite": sum,
    "refit/clamped": sum,
    "refit/proved": min,
    "refit/kv_scales/age": max,
    "refit/changed": fmean,
}


def merge(replicas: dict[int, list[Receipt | None]], quantizations: dict[int, str | None]) -> Receipt:
    """Merge all workers' receipts into one step's metrics, after checking that replicas that serve alike agree.

    Args:
        replicas: receipts by the replica's rank, those of a replica in the order of its workers.
        quantizations: by the same ranks, how a replica serves; those that serve alike have the same bytes.

    Raises:
        RefitError: a worker has no receipt, or replicas that serve alike have different bytes.
    """
    _check_all_there(replicas)
    _check_digests(replicas, quantizations)
    each = {rank: _combine(receipts) for rank, receipts in replicas.items()}
    metrics = _combine([*each.values()])
    metrics["refit/clamped"] = max(receipt["refit/clamped"] for receipt in each.values())  # of one model, not of all
    if len(each) > 1:
        for rank, receipt in each.items():
            metrics |= {name.replace(PREFIX, f"{PREFIX}replica{rank}/", 1): value for name, value in receipt.items()}
    return metrics


def _combine(receipts: list[Receipt]) -> Receipt:
    """Combine several receipts into one; a figure that one of them lacks is left out."""
    known = set.intersection(*(set(receipt) for receipt in receipts))
    return {
        name: COMBINED.get(name, _first)([receipt[name] for receipt in receipts])
        for name in receipts[0]
        if name in known
    }


def _first(values: list[float]) -> float:
    return values[0]


def _check_all_there(replicas: dict[int, list[Receipt | None]]) -> None:
    found = [(rank, worker, receipt) for rank, receipts in replicas.items() for worker, receipt in enumerate(receipts)]
    if missing := [(rank, worker) for rank, worker, receipt in found if receipt is None]:
        raise RefitError(
            f"no receipt from (replica, worker) {missing}: these engine workers never completed a refit, "
            "or vLLM built their model without the ascend_quant plugin"
        )


def _check_digests(replicas: dict[int, list[Receipt]], quantizations: dict[int, str | None]) -> None:
    for quantization in set(quantizations.values()):
        alike = [rank for rank in replicas if quantizations[rank] == quantization]
        for worker, receipts in enumerate(zip(*(replicas[rank] for rank in alike), strict=True)):
            for name, what in DIGESTS.items():
                digests = [receipt.get(name) for receipt in receipts]
                if len(set(digests)) > 1:
                    raise RefitError(
                        f"the replicas {alike} serve different {what}: digests {digests} at worker {worker} of each. "
                        "A replica missed a sync, was started otherwise, or its memory is broken: restart the run"
                    )
