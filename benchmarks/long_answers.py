"""python -m benchmarks.long_answers REPORT.json: what importance weights leave of a batch, by the answers' length.

REPORT is what `ascend-quant mismatch MODEL --out REPORT.json --raw` wrote: log-probabilities of real answers under
the engine that sampled them and one in BF16. Measured: weights of the answers' first tokens, as far as they go.
Simulated: longer answers, and other KLs, of tokens drawn anew from the measured ones, as if they were independent.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.machine import hardware, versions

FORMAT = 1
KLS = (1e-5, 1e-4, 1e-3)  # nats a token
LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 10240, 16384, 20480, 30720)  # tokens
LEVELS = ("token", "sequence", "geometric")  # a token's ratio; the product of the sequence's; that to the power 1 / n
STYLES = {"token": "-", "sequence": "-", "geometric": "--"}  # two of them lie on each other
QUANTILES = np.array([0, 0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1])
RESAMPLED = 400  # times, for a standard error

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Row:
    """Weights of one level, of answers of one length.

    Attributes:
        kl: nats a token, from the rollout's policy to the trainer's.
        measured: else simulated.
        share: effective sample size as a share of the weights, mean(w)^2 / mean(w^2) (Kong 1992), after the cut.
        clipped: which share was cut.
        error: standard error of `share` over sequences; None where it was simulated.
    """

    kl: float
    tokens: int
    level: str
    measured: bool
    share: float
    clipped: float
    error: float | None = None


@app.command()
def main(
    report: Annotated[Path, typer.Argument(help="Of `ascend-quant mismatch .. --out REPORT --raw`.")],
    out: Annotated[Path | None, typer.Option(help="Where the figures go.")] = None,
    picture: Annotated[Path | None, typer.Option("--png", help="Where the picture goes.")] = None,
    threshold: Annotated[float, typer.Option(help="What larger weights are cut to.")] = 2.0,
    sequences: Annotated[int, typer.Option(min=100, help="Simulated sequences.")] = 10_000,
) -> None:
    """Print, write and draw the effective share and the clipped share by length, level and KL."""
    read = json.loads(report.read_text())
    answers = [np.subtract(one["train"], one["rollout"]) for one in read["raw"]["mismatch"]]
    found = figures(answers, threshold, sequences)
    found |= {
        "format": FORMAT,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "hardware": hardware("cpu" if read["machine"]["device"] == "cpu" else "cuda"),
        "versions": versions(),
        "model": Path(read["model"]).name,
        "scheme": read["scheme"],
    }
    for row in found["rows"]:
        print(*(f"{row[name]:.4g}" if isinstance(row[name], float) else row[name] for name in row), sep="\t")
    print(f"KL {found['kl']:.2e}; a sum's variance is {found['spread']:.2f} times that of independent tokens")
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n")
    if picture is not None:
        draw(found, picture)


def figures(answers: Sequence[np.ndarray], threshold: float, sequences: int) -> dict[str, Any]:
    """Everything that is measured and simulated.

    Args:
        answers: of each, log(trainer / rollout) of its tokens, (T,) float64.
    """
    tokens, rng = np.concatenate(answers), np.random.default_rng(0)
    longest = max(n for n in LENGTHS if n <= min(map(len, answers)))
    sums = dict(zip(LENGTHS, drawn_sums(tokens, sequences, rng), strict=True))
    rows = [row for n in LENGTHS if n <= longest for row in measured(answers, n, threshold, rng)]
    for kl in (own := k3(tokens), *KLS):
        factor, shift = scaled(tokens, kl)
        for n in LENGTHS:
            logs = {"token": factor * tokens + shift, "sequence": factor * sums[n] + shift * n}
            logs["geometric"] = logs["sequence"] / n
            rows += [Row(kl, n, level, False, *of_weights(logs[level], threshold)) for level in LEVELS]
    whole = np.array([one[:longest].sum() for one in answers])
    return {
        "threshold": threshold,
        "answers": len(answers),
        "measured_tokens": len(tokens),
        "measured_length": longest,
        "kl": own,
        "spread": float(whole.var(ddof=1) / (longest * tokens.var(ddof=1))),
        "quantiles": dict(zip(map(str, QUANTILES.tolist()), np.quantile(tokens, QUANTILES).tolist(), strict=True)),
        "rows": [asdict(row) for row in rows],
    }


def measured(answers: Sequence[np.ndarray], n: int, threshold: float, rng: np.random.Generator) -> list[Row]:
    """Of the first n tokens of each answer; sequences, not tokens, are drawn again for the errors."""
    first = np.stack([one[:n] for one in answers])
    logs = {"token": first, "sequence": first.sum(1, keepdims=True), "geometric": first.mean(1, keepdims=True)}
    again = [rng.integers(len(first), size=len(first)) for _ in range(RESAMPLED)]
    rows = []
    for level in LEVELS:
        error = np.std([of_weights(logs[level][chosen], threshold)[0] for chosen in again], ddof=1)
        rows.append(Row(k3(first), n, level, True, *of_weights(logs[level], threshold), float(error)))
    return rows


def drawn_sums(tokens: np.ndarray, sequences: int, rng: np.random.Generator) -> list[np.ndarray]:
    """For each of LENGTHS the sum of so many tokens, (sequences,): each one the one before, and more."""
    found, total, done = [], np.zeros(sequences), 0
    for n in LENGTHS:
        for start in range(done, n, 512):
            total = total + rng.choice(tokens, (sequences, min(512, n - start))).sum(1)
        found.append(total)
        done = n
    return found


def scaled(tokens: np.ndarray, kl: float) -> tuple[float, float]:
    """The factor and the shift that give log ratios of one shape another KL.

    Ratios of tokens that were drawn from the rollout's policy have the mean 1; the shift keeps it.
    """
    low, high = 0.0, 1.0

    def shift(factor: float) -> float:
        return float(-np.log(np.exp(factor * tokens).mean()))

    def found(factor: float) -> float:
        return -(factor * tokens.mean() + shift(factor))

    while found(high) < kl:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if found(middle) < kl else (low, middle)
    return high, shift(high)


def of_weights(log_weights: np.ndarray, threshold: float) -> tuple[float, float]:
    """The effective share and the clipped one."""
    weights = np.exp(np.minimum(log_weights, np.log(threshold)))
    return float(weights.mean() ** 2 / (weights**2).mean()), float((log_weights > np.log(threshold)).mean())


def k3(logs: np.ndarray) -> float:
    """The KL from the rollout's policy to the trainer's, nats a token (Schulman 2020)."""
    return float((np.expm1(logs) - logs).mean())


def draw(found: dict[str, Any], path: Path) -> None:
    """Effective share above, clipped share below; a column for each KL, and one for the measured answers."""
    from matplotlib.figure import Figure

    kls = [found["kl"], *KLS]
    figure = Figure(figsize=(15, 6), layout="constrained")
    panels = figure.subplots(2, len(kls), sharex=True, sharey="row")
    for column, kl in enumerate(kls):
        for level in LEVELS:
            rows = [r for r in found["rows"] if r["level"] == level and not r["measured"] and r["kl"] == kl]
            real = [r for r in found["rows"] if r["level"] == level and r["measured"] and column == 0]
            for axes, name in zip(panels[:, column], ("share", "clipped"), strict=True):
                line = axes.plot([r["tokens"] for r in rows], [r[name] for r in rows], STYLES[level], label=level)[0]
                errors = [r["error"] for r in real] if name == "share" else None
                axes.errorbar(
                    [r["tokens"] for r in real], [r[name] for r in real], errors, fmt="o", ms=4, color=line.get_color()
                )
        kind = "measured (dots)" if column == 0 else "simulated"
        panels[0, column].set(title=f"KL {kl:.1e} a token, {kind}", xscale="log", ylim=(0, 1.02))
        panels[0, column].axhline(0.8, color="grey", lw=0.8, ls=":")
        panels[1, column].set(xlabel="tokens of an answer")
    panels[0, 0].set(ylabel="effective share")
    panels[1, 0].set(ylabel="clipped share")
    panels[0, 0].legend(loc="lower left", title="a weight for each")
    about = f"{found['answers']} answers, {found['scheme']}, {found['hardware']['cpu']}, {found['date']}"
    figure.suptitle(f"Importance weights cut at {found['threshold']:g}, by the length of the answers ({about})")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    app()
