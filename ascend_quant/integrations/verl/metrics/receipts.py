"""Metrics of one step from the reports of all engine workers, with a check that all replicas agree.

With several replicas, times are also logged per replica: refit/replica0/milliseconds in addition to refit/milliseconds.
"""

from statistics import fmean

from ascend_quant.refit import RefitError

Metrics = dict[str, float]
WorkerReport = tuple[Metrics, dict[str, str]]  # a worker's metrics, and `Receipt.digests`
PREFIX = "refit/"
COMBINED = {  # metrics that are not listed are equal on all workers, so the first value is used
    "refit/milliseconds": max,
    "refit/kernel_ms": max,
    "refit/wait_ms": max,
    "refit/wake_ms": max,
    "refit/clamped": sum,
    "refit/verified": min,
    "refit/kv_scales/sent": min,
    "refit/changed": fmean,
}
OF_A_REPLICA = ("refit/milliseconds", "refit/wake_ms")


def merge(replicas: dict[int, list[WorkerReport | None]], quantizations: dict[int, str | None]) -> Metrics:
    """Merge all workers' reports into one step's metrics, after checking that replicas with the same options agree.

    Args:
        replicas: reports by replica rank, in the order of the replica's workers.
        quantizations: quantization options by replica rank; replicas with equal options must have equal bytes.

    Raises:
        RefitError: a worker has no report, or replicas with equal options have different bytes.
    """
    _check_all_there(replicas)
    _check_digests(replicas, quantizations)
    each = {rank: _combine([metrics for metrics, _ in reports]) for rank, reports in replicas.items()}
    merged = _combine([*each.values()])
    merged["refit/clamped"] = max(metrics["refit/clamped"] for metrics in each.values())  # per model
    if len(each) > 1:
        for rank, metrics in each.items():
            merged |= {name.replace(PREFIX, f"{PREFIX}replica{rank}/"): metrics[name] for name in OF_A_REPLICA}
    return merged


def _combine(several: list[Metrics]) -> Metrics:
    """Combine the metrics of several workers or replicas; metrics that are not reported by all are omitted."""
    known = set.intersection(*(set(metrics) for metrics in several))
    return {
        name: COMBINED.get(name, _first)([metrics[name] for metrics in several]) for name in several[0] if name in known
    }


def _first(values: list[float]) -> float:
    return values[0]


def _check_all_there(replicas: dict[int, list[WorkerReport | None]]) -> None:
    found = [(rank, worker, report) for rank, reports in replicas.items() for worker, report in enumerate(reports)]
    if missing := [(rank, worker) for rank, worker, report in found if report is None]:
        raise RefitError(
            f"no receipt from (replica, worker) {missing}: these engine workers never completed a refit, "
            "or vLLM built their model without the ascend_quant plugin"
        )


def _check_digests(replicas: dict[int, list[WorkerReport]], quantizations: dict[int, str | None]) -> None:
    for quantization in set(quantizations.values()):
        alike = [rank for rank in replicas if quantizations[rank] == quantization]
        for worker, reports in enumerate(zip(*(replicas[rank] for rank in alike), strict=True)):
            for what in {what: None for _, digests in reports for what in digests}:
                found = [digests.get(what) for _, digests in reports]
                if len(set(found)) > 1:
                    raise RefitError(
                        f"the replicas {alike} serve different {what}: digests {found} at worker {worker} of "
                        "each. A replica missed a sync, was started with other options, or has faulty "
                        "memory: restart the run"
                    )
