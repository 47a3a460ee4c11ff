"""What a check is, the list of them, and how one is carried out: an error in one is its result, not the end.

    @check("layout.padding", needed=False)
    def padding(on: Setting, numbers: dict) -> None:
        \"""Are the bytes that fill up a panel zeros?\"""
        numbers["not zero"] = ...                          # kept whatever happens next
        require(numbers["not zero"] == 0, "...")           # the answer is no: failed

`needed` checks decide the exit code: our kernels are wrong where one fails. The others are facts worth knowing, whose
"failed" is the answer "no".
"""

import re
import socket
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

PASSED, FAILED, NOT_POSSIBLE = "passed", "failed", "not possible"
IN_SHORT = "in short"  # of the numbers, the one that the table shows
LONGEST = 1500  # characters of an error's text


class Wrong(Exception):
    """The device gives something else than it must."""


class NotPossible(Exception):
    """Nothing is wrong, but this machine cannot answer; the text says why."""


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
    """

    name: str
    question: str
    needed: bool
    run: Callable[[Setting, dict[str, Any]], None]


CHECKS: dict[str, Check] = {}


def check(name: str, needed: bool = True):
    """Registers a check; the first line of its docstring is the question."""

    def register(function):
        CHECKS[name] = Check(name, function.__doc__.strip().splitlines()[0], needed, function)
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
            status, error = PASSED, ""
        except (NotPossible, NotImplementedError) as why:
            status, error = NOT_POSSIBLE, str(why)
        except Wrong as why:
            status, error = FAILED, str(why)
        except Exception as why:  # whatever torch_npu raises is what we came to see
            status, error = FAILED, f"{type(why).__name__}: {why}"
    seconds = round(time.perf_counter() - start, 3)
    if fallen := sorted({str(one.message) for one in heard if "fall back" in str(one.message)}):
        numbers["ran on the host"] = [without_traces(text) for text in fallen]
    return entry(one, status, error, seconds, numbers)


def entry(one: Check, status: str, error: str, seconds: float, numbers: dict[str, Any]) -> dict[str, Any]:
    """A check's result as the JSON file has it."""
    return {
        "name": one.name,
        "question": one.question,
        "needed": one.needed,
        "status": status,
        "error": without_traces(error),
        "seconds": seconds,
        "numbers": numbers,
    }


def without_traces(text: str) -> str:
    """The text without folders and without this host's name: the file goes to strangers."""
    text = re.sub(r"(?<![\w.])(?:/[\w.+@-]+)+/(?=[\w.+@-])", "", text)
    host = socket.gethostname()
    return (text.replace(host, "(host)") if len(host) > 2 else text)[:LONGEST]


def _is_in(known: str, name: str) -> bool:
    return known == name or known.startswith(f"{name}.")
