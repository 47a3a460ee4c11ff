"""Renamed metrics, which are logged under both names for a while, since dashboards may use the old ones."""

import functools
import logging

logger = logging.getLogger(__name__)

RENAMED = {  # old name -> new name, after refit/ and refit/replicaR/
    "proved": "verified",
    "left_out": "skipped",
    "left_alone": "unquantized",
    "memory_ms": "wake_ms",
    "sent_as_codes": "prequantized",
}
GONE_IN = "0.3"  # the first release that logs only the new names


def with_old_names(metrics: dict[str, float]) -> dict[str, float]:
    """Return a weight sync's metrics with renamed ones also under their old names; warns the first time."""
    _tell()
    old = {
        name.removesuffix(now) + before: value
        for before, now in RENAMED.items()
        for name, value in metrics.items()
        if name.endswith(f"/{now}")
    }
    return metrics | old


@functools.cache
def _tell() -> None:
    renamed = ", ".join(f"refit/{before} is now refit/{now}" for before, now in RENAMED.items())
    logger.warning("metrics: %s. Both names are logged until ascend-quant %s; see docs/metrics.md", renamed, GONE_IN)
