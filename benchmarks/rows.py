"""Outcomes as rows of figures: one row a method, with its rate and how that compares with a plain copy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.engine import OURS
from benchmarks.tasks import Outcome
from benchmarks.timing import summary

WORDS = {
    "bare": "load_weights",
    "session": "512 MiB buckets",
    "reload": "reload_weights",
    "loaders": "load_weights, no plan",
    "stacked": "load_weights, stacked experts",
}


@dataclass(frozen=True)
class Row:
    """One method's figures.

    Attributes:
        part, model: what was measured.
        method: its name.
        ms, host_ms: median and spread (see `timing`).
        moved: bytes that it must at least read and write.
        extra_bytes: device memory that it took for itself, at most.
    """

    part: str
    model: str
    method: str
    ms: dict
    host_ms: dict
    moved: int
    extra_bytes: int | None = None

    @property
    def rate(self) -> float:
        """Bytes a second, by the median."""
        return self.moved / self.ms["median"] * 1e3


def rows_of(outcomes: Sequence[Outcome]) -> list[Row]:
    """All rows, in the order of the tasks."""
    makers = {"kernels": _kernels, "engine": _engine, "ranks": _ranks, "graphs": lambda outcome: ()}
    return [row for o in outcomes if o.result is not None for row in makers[o.task.part](o)]


def copy_rate(outcomes: Sequence[Outcome]) -> float | None:
    """Bytes a second of a plain device copy, read and written ones counted; None if the run has not measured it."""
    rates = [row.rate for row in rows_of(outcomes) if row.method == "copy"]
    return max(rates, default=None)


def _kernels(outcome: Outcome) -> Iterator[Row]:
    result = outcome.result
    for method, samples in result["samples"].items():
        moved = result["copied"] if method == "copy" else result["bytes"]
        yield Row("kernels", outcome.task.model, method, summary(samples["ms"]), summary(samples["host_ms"]), moved)


def _engine(outcome: Outcome) -> Iterator[Row]:
    result, scheme = outcome.result, outcome.task.variant
    first = {f"{WORDS[way]}, first": [sample] for way, sample in result["first"].items() if way in ("bare", "stacked")}
    later = {WORDS[way]: samples for way, samples in result["samples"].items()}
    for words, samples in {**(first if scheme in OURS else {}), **later}.items():
        yield _row("engine", outcome.task.model, f"{scheme}: {words}", samples, result["moved"])


def _ranks(outcome: Outcome) -> Iterator[Row]:
    """A sync takes as long as the slowest rank."""
    task, moved = outcome.task, max(facts["moved"] for facts in outcome.result["facts"])
    who = f"{task.ranks} rank{'s' if task.ranks > 1 else ''}{', experts dealt out' if task.expert_parallel else ''}"
    for way, rounds in outcome.result["samples"].items():
        slowest = [max(ranks, key=lambda sample: sample["ms"]) for ranks in rounds]
        yield _row("ranks", task.model, f"{who}: {WORDS[way]}", slowest, moved)


def _row(part: str, model: str, method: str, samples: Sequence[dict], moved: int) -> Row:
    ms, host = ([sample[key] for sample in samples] for key in ("ms", "host_ms"))
    extra = [sample["extra_bytes"] for sample in samples if sample["extra_bytes"] is not None]
    return Row(part, model, method, summary(ms), summary(host), moved, max(extra, default=None))
