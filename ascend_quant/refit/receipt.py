"""The receipt of a refit: its duration, digest and counts, as metrics."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from ascend_quant.schemes.layer_names import LeftOut, Unquantized


class Report(Protocol):
    """A part of a receipt."""

    @property
    def digest(self) -> str:
        """The checksum of the reported state, equal on replicas that serve the same."""
        ...

    def as_metrics(self) -> Mapping[str, float]:
        """Return numbers for a training logger."""
        ...


@dataclass(frozen=True)
class Receipt:
    """The receipt of one refit: its duration, digest and counts.

    Attributes:
        number: number of the refit; 1 is the first load.
        tensors, bytes: number and size of the tensors received from the trainer or the checkpoint.
        milliseconds: time from open to close on the host's clock, including the wait for the trainer's tensors.
        kernel_ms: time of the refit's own kernels, see `kernels.events`.
        nonfinite: number of NaN and Inf elements; always 0, since a refit with such elements fails.
        clamped: number of elements outside [-128, 127] with a frozen scale; 0 if every row has its own scale.
        changed: fraction of the codes in every 64th row that differ from the previous refit's (0 if nothing is
            quantized); reading all previous codes would cost a third of the refit. None if unknown: there is no
            previous refit, or its codes are lost (a refit has failed since; or they were discarded during sleep and
            could not be kept, see code_snapshot.py).
        left_alone: unquantized layers of kinds that are quantized.
        digest: checksum of all resident bytes, 16 hex digits (see `oracle.digest`).
        left_out: received tensors that the engine's own loader skips by design, such as a checkpoint's MTP layers
            (multi-token prediction) if no drafter is loaded; not counted in `tensors`.
        reports: reports of checks, by name, such as `kv_scales`.
    """

    number: int
    tensors: int
    bytes: int
    milliseconds: float
    kernel_ms: float
    nonfinite: int
    clamped: int
    changed: float | None
    left_alone: Unquantized
    digest: str
    left_out: LeftOut
    reports: Mapping[str, Report] = field(default_factory=dict[str, Report])

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, including those of reports."""
        found = asdict(self)
        return found | found.pop("reports")

    def as_metrics(self) -> dict[str, float]:
        """Return the metrics for a training logger as `refit/*`; unknown ones are omitted."""
        numbers = {name: getattr(self, name) for name in ("number", "milliseconds", "kernel_ms", "changed", "clamped")}
        numbers |= {"unquantized": len(self.left_alone.names), "skipped": len(self.left_out.names)}
        for report in self.reports.values():
            numbers |= report.as_metrics()
        return {f"refit/{name}": value for name, value in numbers.items() if value is not None}

    def digests(self) -> dict[str, str]:
        """Return the checksums that must be equal on replicas that serve the same, by name."""
        return {"weights": self.digest} | {name: report.digest for name, report in self.reports.items()}
