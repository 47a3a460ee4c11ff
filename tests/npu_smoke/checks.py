"""What a check is, the list of them, and how one is carried out: an error in one is its result, not the end.

    @check("layout.padding", needed=False)
    def padding(on: Setting, numbers: dict) -> None:
        \"""Are the bytes that fill up a panel zeros?\"""
        numbers["not zero"] = ...                          # kept whatever happens next
        require(numbers["not zero"] == 0, "...")           # the answer is no: failed

Its verdict: a check that names a claim (claims.py) proves or refutes it, any other tells a fact, whose answer is yes or
no; either may be missing, with the reason. `needed` checks decide the exit code: our kernels are wrong where the answer
is no.
"""

import re
import socket
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from npu_smoke.claims import CLAIMS

YES, NO, UNKNOWN = "yes", "no", "unknown"
PROVED, REFUTED, MISSING, FACT = "proved", "refuted", "missing", "fact"
LIMIT_S = 240.0  # of a check that says nothing else
IN_SHORT = "in short"  # of the numbers, the one that the table shows
LONGEST = 1500  # characters of an error's text


class Wrong(Exception):
    """The device gives something else than it must."""


class NotPossible(Exception):
    """Nothing is wrong, but this machine cannot answer: an operator, a device or a tool is missing, and which."""


@dataclass(frozen=True)
class Setting:
    """Where and how large.

    Attributes:
        small: shapes for a dry run.
    """

    device: torch.device
    small: bool

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device."""
        return tensor.to(self.device)


@dataclass(frozen=True)
class Check:
    """One question to the hardware.

    Attributes:
        needed: whether our kernels are wrong where the answer is no.
        run: fills in numbers; raises Wrong, NotPossible or whatever goes wrong.
        claim: the key of what the answer "yes" proves; "" where the answer is a fact.
        limit_s: seconds, after which its process is ended.
        variables: of its environment, where it needs a process of its own with others.
    """

    name: str
    question: str
    needed: bool
    run: Callable[[Setting, dict[str, Any]], None]
    claim: str = ""
    limit_s: float = LIMIT_S
    variables: Mapping[str, str] = field(default_factory=dict)


CHECKS: dict[str, Check] = {}


def check(
    name: str,
    needed: bool = True,
    claim: str = "",
    limit_s: float = LIMIT_S,
    variables: Mapping[str, str] | None = None,
):
    """Registers a check; the first line of its docstring is the question."""
    if claim and claim not in CLAIMS:
        raise ValueError(f"{name}: no claim {claim!r} in claims.py")

    def register(function):
        question = function.__doc__.strip().splitlines()[0]
        CHECKS[name] = Check(name, question, needed, function, claim, limit_s, dict(variables or {}))
        return function

    return register


def require(holds: bool, text: str) -> None:
    """Raise Wrong with the text unless the condition holds."""
    if not holds:
        raise Wrong(text)


def choose(wanted: list[str]) -> list[str]:
    """The checks of these names or groups ("arithmetic"), in their order; all for none.

    Raises:
        ValueError: naming what there is.
    """
    for name in wanted:
        if not any(_is_in(known, name) for known in CHECKS):
            raise ValueError(f"no check {name!r}; there are: {', '.join(CHECKS)}, and their groups")
    return [known for known in CHECKS if not wanted or any(_is_in(known, name) for name in wanted)]


def carry_out(one: Check, setting: Setting) -> dict[str, Any]:
    """The check's entry in the JSON file."""
    numbers: dict[str, Any] = {}
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            one.run(setting, numbers)
            torch.npu.synchronize()  # an operator's error may come this late
            answer, reason = YES, ""
        except (NotPossible, NotImplementedError) as why:
            answer, reason = UNKNOWN, str(why)
        except Wrong as why:
            answer, reason = NO, str(why)
        except Exception as why:  # whatever torch_npu raises is what we came to see
            answer, reason = NO, f"{type(why).__name__}: {why}"
    seconds = round(time.perf_counter() - start, 3)
    if fallen := sorted({str(one.message) for one in heard if "fall back" in str(one.message)}):
        numbers["ran on the host"] = [without_traces(text) for text in fallen]
    return entry(one, answer, reason, seconds, numbers)


def entry(one: Check, answer: str, reason: str, seconds: float, numbers: dict[str, Any]) -> dict[str, Any]:
    """A check's result as the JSON file has it."""
    return {
        "name": one.name,
        "verdict": verdict_of(one, answer),
        "answer": answer,
        "claim": asdict(CLAIMS[one.claim]) if one.claim else None,
        "reason": without_traces(reason),
        "needed": one.needed,
        "question": one.question,
        "seconds": seconds,
        "numbers": numbers,
    }


def verdict_of(one: Check, answer: str) -> str:
    """What an answer says of the sentence that is checked, if there is one."""
    if answer == UNKNOWN:
        return MISSING
    return {YES: PROVED, NO: REFUTED}[answer] if one.claim else FACT


def without_traces(text: str) -> str:
    """The text without folders and without this host's name: the file goes to strangers."""
    text = re.sub(r"(?<![\w.])(?:/[\w.+@-]+)+/(?=[\w.+@-])", "", text)
    host = socket.gethostname()
    return (text.replace(host, "(host)") if len(host) > 2 else text)[:LONGEST]


def _is_in(known: str, name: str) -> bool:
    return known == name or known.startswith(f"{name}.")
