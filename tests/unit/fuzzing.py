"""What fuzzed properties share: documents that are nearly right, files that are damaged, and what holds of a reader.

The cases are the same at every run. By hand, ASCEND_QUANT_FUZZ=20 tries twenty times as many, other ones each time.
"""

import copy
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

TIMES = int(os.environ.get("ASCEND_QUANT_FUZZ", "0"))
LONGEST = 2000  # letters of a refusal
HANG = 20  # seconds of a core
Made = TypeVar("Made")

WORDS = st.sampled_from(
    ["", "int8", "bf16", "auto", "true", "null", "1e5", "010", "../x", "/", "~nobody/x", "x" * 5000]
)
TEXTS = WORDS | st.text(max_size=8)
NUMBERS = (
    st.integers(-3, 70)
    | st.sampled_from([2**31, 2**63, -(2**64), 10**30, 10**400, -(10**9)])
    | st.floats()
    | st.sampled_from([1e-320, 1e300])
)
TREES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def fuzzed(cases: int) -> settings:
    """The settings of a property that is tried with so many cases."""
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(
        max_examples=cases * max(1, TIMES),
        derandomize=not TIMES,
        database=None,
        report_multiple_bugs=False,
        deadline=None,
        suppress_health_check=[*checks, HealthCheck.large_base_example, HealthCheck.filter_too_much],
    )


def held(read: Callable[[], Made], *refusals: type[Exception]) -> Made | None:
    """What `read` gives; None if it refuses, which it does with one of the classes, in one line that is not long.

    Whatever it does, it ends, and writes nothing into the working folder.
    """
    before, made = contents(Path.cwd()), None
    try:
        with no_hang():
            made = read()
    except refusals as refused:
        said = str(refused)
        assert len(said.splitlines()) == 1 and len(said) < LONGEST, said[: 2 * LONGEST]
    assert contents(Path.cwd()) == before, "something was written"
    return made


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def no_hang() -> Iterator[None]:
    """An AssertionError in whatever computes for longer than `HANG`."""

    def stop(*_: Any) -> None:
        raise AssertionError(f"still computing after {HANG} s")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@st.composite
def changed(draw: st.DrawFn, right: Any, values: st.SearchStrategy = TREES) -> Any:
    """A document with up to three of its values replaced, taken out, or put beside another key."""
    found = copy.deepcopy(right)
    for _ in range(draw(st.integers(0, 3))):
        places = list(containers(found))
        if not places:
            return draw(values)
        inside = draw(st.sampled_from(places))
        key = draw(st.sampled_from(list(inside) if isinstance(inside, dict) else range(len(inside))))
        how = draw(st.sampled_from(["replaced", "replaced", "taken out", "added"]))
        if how == "taken out":
            del inside[key]
        elif how == "replaced":
            inside[key] = copy.deepcopy(draw(values))  # or the next change would be one of the strategy's own value
        elif isinstance(inside, dict):
            inside[draw(TEXTS)] = copy.deepcopy(draw(values))
        else:
            inside.append(copy.deepcopy(draw(values)))
    return found


def containers(tree: Any) -> Iterator[Any]:
    """The dictionaries and lists of a tree that hold something."""
    if isinstance(tree, (dict, list)) and tree:
        yield tree
        for inner in tree.values() if isinstance(tree, dict) else tree:
            yield from containers(inner)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """A file's bytes, as they were or with one thing wrong."""
    at = draw(st.integers(0, len(whole)))
    kind = draw(st.sampled_from(["whole"] * 4 + ["cut", "put in", "flipped", "deep", "long", "twice", "recoded"]))
    if kind == "cut":
        return whole[:at]
    if kind == "put in":
        return whole[:at] + draw(st.binary(min_size=1, max_size=4)) + whole[at:]
    if kind == "flipped":
        return whole[:at] + bytes(byte ^ draw(st.integers(1, 255)) for byte in whole[at : at + 1]) + whole[at + 1 :]
    if kind == "deep":
        return whole[:at] + draw(st.sampled_from([b"[", b'{"a":', b"- "])) * draw(st.sampled_from([70, 400]))
    if kind == "long":
        return whole[:at] + b"9" * draw(st.sampled_from([60, 5000])) + whole[at:]
    if kind == "twice":
        return whole + whole
    if kind == "recoded":
        return whole.decode("utf-8", "replace").encode(draw(st.sampled_from(["utf-16", "utf-8-sig", "utf-32-be"])))
    return whole


def as_json(tree: Any) -> bytes:
    return json.dumps(tree).encode()


def json_files(right: Any) -> st.SearchStrategy[bytes]:
    """JSON files that are nearly the one of `right`."""
    return changed(right).map(as_json).flatmap(damaged) | st.binary(max_size=40)
