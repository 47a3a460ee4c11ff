"""The bars of the issue, and what this run measured beside each.

A bar is judged on the hardware and the shapes it was set for: a GPU, a model that people train, all of its layers.
Elsewhere the figure is shown all the same.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.models import get_model
from benchmarks.rows import Row, copy_rate, rows_of
from benchmarks.tasks import Outcome

MIB = 1 << 20


@dataclass(frozen=True)
class Bar:
    """One bar.

    Attributes:
        text: what is measured.
        target: what it should be, in words.
        value: what it is.
        met: None where it is not judged.
    """

    text: str
    target: str
    value: float
    met: bool | None


def bars_of(outcomes: Sequence[Outcome]) -> list[Bar]:
    """Every bar that this run has figures for."""
    figures = {(row.part, row.model, row.method): row for row in rows_of(outcomes)}
    judged = bool(outcomes) and all(o.task.device == "cuda" and _is_whole(o) for o in outcomes)
    found = [*_kernels(figures, copy_rate(outcomes)), *_engine(figures), *_ranks(figures)]
    return judged_bars(found, judged)


def _is_whole(outcome: Outcome) -> bool:
    model = get_model(outcome.task.model)
    layers = (outcome.result or {}).get("layers", outcome.task.layers or model.layers)
    return outcome.task.part == "graphs" or (model.real and layers == model.layers)


Judgement = tuple[str, str, float, bool]
Found = Iterator[Judgement]


def judged_bars(found: Iterable[Judgement], judged: bool) -> list[Bar]:
    """What `at_least` and `at_most` say, with their verdict only where it is one."""
    return [Bar(text, target, value, met if judged else None) for text, target, value, met in found]


def at_least(text: str, least: float, value: float) -> Judgement:
    """A bar's text, target, value and whether it is met."""
    return text, f">= {least:g}", value, value >= least


def at_most(text: str, most: float, value: float) -> Judgement:
    """The same from the other side."""
    return text, f"<= {most:g}", value, value <= most


def _kernels(figures: dict[tuple, Row], copied: float | None) -> Found:
    for (part, model, method), ours in figures.items():
        if part != "kernels" or method != "ours":
            continue

        def times(other: str, ours: Row = ours, model: str = model) -> float | None:
            row = figures.get(("kernels", model, other))
            return row and row.ms["median"] / ours.ms["median"]

        yield at_least(f"{model}: quantizing to int8, of a copy's bandwidth", 0.85, ours.rate / copied)
        yield at_least(f"{model}: times FlashRL's speed", 10, times("FlashRL"))
        if (in_place := times("vLLM in place")) is not None:
            yield at_least(f"{model}: times the speed of vLLM's in-place kernel", 1, in_place)
        yield at_most(f"{model}: time with the receipt, of that without", 1.1, 1 / times("ours, no receipt"))


def _engine(figures: dict[tuple, Row]) -> Found:
    def later(model: str, words: str) -> Row | None:
        return figures.get(("engine", model, f"int8: {words}"))

    small, large = later("qwen2.5-7b", "load_weights"), later("qwen2.5-32b", "load_weights")
    if small:
        yield at_most("qwen2.5-7b: load_weights, ms", 20, small.ms["median"])
        if small.extra_bytes is not None:
            yield at_most("qwen2.5-7b: extra device memory, MiB", 64, small.extra_bytes / MIB)
    if small and large:
        yield at_most("qwen2.5-32b: time a byte, of qwen2.5-7b's", 1.15, small.rate / large.rate)
    for words, most in (("512 MiB buckets", 250), ("load_weights, stacked experts", 80)):
        if row := later("qwen3-30b-a3b", words):
            yield at_most(f"qwen3-30b-a3b: {words}, ms", most, row.ms["median"])
    ours, plain = (figures.get(("engine", "qwen3-30b-a3b", f"{name}: 512 MiB buckets")) for name in ("int8", "bf16"))
    if ours and plain:
        yield at_most("qwen3-30b-a3b: 512 MiB buckets, of BF16's time", 1.15, ours.ms["median"] / plain.ms["median"])


def _ranks(figures: dict[tuple, Row]) -> Found:
    """Not in buckets: the host's time between them counts too, which more ranks do not share."""
    judged = ("load_weights", "load_weights, stacked experts")
    for (part, model, method), row in figures.items():
        words = method.partition(": ")[2]
        one = figures.get(("ranks", model, f"1 rank: {words}"))
        if part == "ranks" and words in judged and one is not None and row is not one:
            yield at_most(f"{model}: {method}, of one rank's time", 0.6, row.ms["median"] / one.ms["median"])
