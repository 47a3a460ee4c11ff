"""The judges of claims about NPUs: results of a smoke test prove a claim, refute it, or leave it open."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ascend_quant.smoke.npu.data import REPLAYS, SEVEN_B_OF_4
from ascend_quant.smoke.results import FAILED, NOT_APPLICABLE, OK, Result

Verdict = Literal["proved", "refuted", "open"]
PROVED: Verdict = "proved"
REFUTED: Verdict = "refuted"
OPEN: Verdict = "open"
Results = Mapping[str, Result]
Judge = Callable[[Results], tuple[bool, str]]
FUSED, PAPER_MS, COPIES, WAITS = "codes_fused", 170, 7, 2
BATCHES = ("8", "64", "256")
LIKE_THE_VENDOR, SHARE_OF_BYTES = 0.97, 0.6


@dataclass(frozen=True)
class Claim:
    """A sentence about NPUs.

    Attributes:
        says, says_zh: it, in the languages of the page.
        probes: those that decide.
        judge: whether it holds by what they have seen, and that in short; raises KeyError where they have not seen
            what decides. None: it holds if they have passed.
    """

    says: str
    says_zh: str
    probes: tuple[str, ...]
    judge: Judge | None = None

    def decide(self, results: Results) -> "Decided":
        """Decide the claim by the results that there are."""
        for name in self.probes:
            if name not in results:
                return Decided(self, OPEN, why=f"{name} has not run")
            if (one := results[name]).broke or one.status == NOT_APPLICABLE:
                return Decided(self, OPEN, why=f"{name}: {one.reason}")
        if self.judge is None:
            failed = [f"{name}: {results[name].reason}" for name in self.probes if results[name].status == FAILED]
            return Decided(self, REFUTED if failed else PROVED, why="; ".join(failed))
        try:
            holds, seen = self.judge(results)
        except (KeyError, TypeError, ZeroDivisionError) as why:  # not there, or "nan" as JSON has it, or nothing at all
            return Decided(self, OPEN, why=f"{', '.join(self.probes)}: not seen: {why.args[0]}")
        return Decided(self, PROVED if holds else REFUTED, seen)


@dataclass(frozen=True)
class Decided:
    """A claim with its verdict, what was measured, and why it is not proved."""

    claim: Claim
    verdict: Verdict
    seen: str = ""
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "claim": self.claim.says, "probes": list(self.claim.probes), "verdict": self.verdict, "seen": self.seen,
            "why": self.why,
        }  # fmt: skip


def value(results: Results, probe: str, name: str) -> Any:
    """Return a value that a probe has seen; raise KeyError where it has not."""
    return results[probe].values[name]


def equals(probe: str, name: str, wanted: Any) -> Judge:
    return lambda results: ((found := value(results, probe, name)) == wanted, f"{name}: {found}")


def copies(results: Results) -> tuple[bool, str]:
    names = [name for name in results["speed.refit"].values if name.endswith("of 7B, copies")] or missing("copies")
    found = value(results, "speed.refit", names[0])
    return found < COPIES, f"{found:.2f} ({names[0].partition(' of')[0]})"


def on_paper(results: Results) -> tuple[bool, str]:
    ms = value(results, "speed.refit", "28 layers of 7B, ms")
    return ms <= PAPER_MS, f"{ms / 1e3:.3f} s"


def waits(results: Results) -> tuple[bool, str]:
    found = value(results, "speed.refit_calls", "waits")
    if not found or value(results, "speed.refit_calls", "way") != FUSED:  # a refit waits for its counts at least
        missing("waits of the fused path")
    return found <= WAITS, str(found)


def no_ai_cpu(results: Results) -> tuple[bool, str]:
    if value(results, "speed.refit_calls", "way") != FUSED:
        missing("the fused path")
    found = value(results, "speed.refit_calls", "on the AI CPU")
    return not found, ", ".join(found)


def no_memory(results: Results) -> tuple[bool, str]:
    values = results["operators.refits"].values
    pairs = [pair for name, pair in values.items() if "bytes reserved" in name] or missing("bytes reserved")
    grown = max(last - first for first, last in pairs)
    return grown <= 0, f"{grown:+d} B"


def graphs(results: Results) -> tuple[bool, str]:
    values = results["operators.refits"].values
    apart = [count for name, count in values.items() if name.endswith(REPLAYS)] or missing("captured graphs")
    return not sum(apart), ""


def exact(results: Results) -> tuple[bool, str]:
    found = value(results, "operators.rounding", "codes by")
    return found == FUSED and results["operators.rounding"].status == OK, f"codes by: {found}"


def slept(results: Results) -> tuple[bool, str]:
    before, after, same = (value(results, "engine.sleep", name) for name in ("before", "after", "same answers"))
    return before == after and same, ""


def faster(over: str, under: str, batches: tuple[str, ...], least: float = 1.0) -> Judge:
    """Return whether one generates more than `least` times the tokens a second of the other."""

    def judge(results: Results) -> tuple[bool, str]:
        rates = [value(results, probe, "tokens/s by batch") for probe in (over, under)]
        ratios = [rates[0][batch] / rates[1][batch] for batch in batches]
        return min(ratios) > least, ", ".join(f"{one:.2f}" for one in ratios)

    return judge


def share_of_bytes(results: Results) -> tuple[bool, str]:
    share = value(results, "speed.int8", "bytes of weights") / value(results, "speed.bf16", "bytes of weights")
    return share <= SHARE_OF_BYTES, f"{share:.2f}"


def layers_of_four(results: Results) -> tuple[bool, str]:
    found = [value(results, "speed.linear", f"{n} x {k}, 64 tokens, us") for n, k in SEVEN_B_OF_4]
    ratios = [one["bf16"] / one["int8"] for one in found]
    return min(ratios) > 1, ", ".join(f"{one:.2f}" for one in ratios)


def shorter(results: Results) -> tuple[bool, str]:
    int8, bf16 = (value(results, f"twins.{scheme}", "step, s") for scheme in ("int8", "bf16"))
    return int8 < bf16, f"{int8:.1f} s, {bf16:.1f} s"


def missing(what: str) -> Any:
    raise KeyError(what)
