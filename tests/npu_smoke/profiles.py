"""What msprof sees of a refit: how often the host waits, what runs on the AI CPU, kernels behind each operator.

`profiled.py` is carried out under msprof twice, with another number of refits: what start and warm-up cost is in both,
and drops out of the difference. Its kernels are told apart by a marker that nothing else launches.
"""

import csv
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from npu_smoke import tools
from npu_smoke.checks import IN_SHORT, Setting, Wrong, check, require
from npu_smoke.profiled import MARKER

FEW, MORE = 1, 5  # refits
SECONDS = 150.0  # of one run
MOST_WAITS = 2
WAITS = ("aclrtSynchronizeStream", "aclrtSynchronizeDevice", "aclrtSynchronizeEvent")  # and their ..WithTimeout
COPIES = "aclrtMemcpy"  # not ..Async
MSPROF = "it comes with CANN's toolkit: source its set_env.sh"
Rows = list[dict[str, str]]


@check("profiles.waits", needed=False, claim="waits", limit_s=2 * SECONDS + 60)
def waits(on: Setting, numbers: dict) -> None:
    """Does the host wait for the device at most twice a refit?"""
    few, more = (_calls(api) for api, _, _ in _both(on))
    each = {name: (more[name] - few[name]) / (MORE - FEW) for name in sorted(more) if more[name] != few[name]}
    waiting = {name: count for name, count in each.items() if name.startswith(WAITS)}
    numbers["a refit"], numbers["waits"] = each, waiting
    total = sum(waiting.values())
    numbers[IN_SHORT] = f"{total:g} waits, {each.get(COPIES, 0.0):g} blocking copies a refit"
    require(
        total <= MOST_WAITS, f"{total:g} waits a refit: {', '.join(f'{name} {n:g}' for name, n in waiting.items())}"
    )


@check("profiles.ai_cpu", needed=False, claim="ai cpu", limit_s=2 * SECONDS + 60)
def ai_cpu(on: Setting, numbers: dict) -> None:
    """Does no operator of a refit run on the AI CPU?"""
    _, sections, _ = _both(on)[1]
    kernels = sections["refits"]
    numbers["kernels a refit"] = len(kernels) / MORE
    numbers["microseconds a refit, by type"] = _longest(kernels)
    slow = Counter(row["OP Type"] for row in kernels if "CPU" in row.get("Task Type", "").upper())
    numbers["on the AI CPU"] = dict(slow)
    numbers[IN_SHORT] = f"{numbers['kernels a refit']:g} kernels a refit, {sum(slow.values()) / MORE:g} on the AI CPU"
    require(not slow, f"on the AI CPU: {', '.join(f'{name} {count / MORE:g} a refit' for name, count in slow.items())}")


@check("profiles.kernels", needed=False, limit_s=2 * SECONDS + 60)
def kernels_of_operators(on: Setting, numbers: dict) -> None:
    """Which kernels does each operator of a refit launch, and how long do they take?"""
    _, sections, elements = _both(on)[1]
    numbers["elements"] = elements
    for name, kernels in sections.items():
        numbers[name] = _longest(kernels, 1) if name != "refits" else len(kernels)


def _longest(kernels: Rows, refits: int = MORE) -> dict[str, Any]:
    """Microseconds and number by type and where they ran, the longest first."""
    found: dict[str, list[float]] = {}
    for row in kernels:
        found.setdefault(f"{row['OP Type']} ({row.get('Task Type', '?')})", []).append(float(row["Task Duration(us)"]))
    in_order = sorted(found.items(), key=lambda item: -sum(item[1]))
    return {name: {"number": len(all_) / refits, "us": sum(all_) / refits} for name, all_ in in_order}


@cache
def _both(on: Setting) -> list[tuple[Rows, dict[str, Rows], int]]:
    """Of both runs: calls of the runtime, kernels by section, elements of a refit."""
    return [_profile(on, refits) for refits in (FEW, MORE)]


def _profile(on: Setting, refits: int) -> tuple[Rows, dict[str, Rows], int]:
    msprof = tools.need_program("msprof", MSPROF)
    with tools.folder() as folder:
        work = tools.module("npu_smoke.profiled", "--device", str(on.device), "--refits", str(refits))
        work += ["--small"] if on.small else []
        command = [msprof, f"--output={folder / 'out'}", "--runtime-api=on", "--aicpu=on", *work]
        code, said = tools.run(command, SECONDS, folder, {"NPU_SMOKE_SECTIONS": str(folder / "sections.csv")})
        sections = folder / "sections.csv"
        if not sections.is_file():
            raise Wrong(f"msprof ended with {code}, before what it watches did: {' '.join(said.split())[-800:]}")
        elements, *names = sections.read_text().split(",")
        api, kernels = (_table(folder / "out", name, said) for name in ("api_statistic", "op_summary"))
    return api, _by_section(kernels, names), int(elements)


def _table(folder: Path, name: str, said: str) -> Rows:
    """A table that msprof has written.

    Raises:
        Wrong: there is none.
    """
    files = sorted(folder.glob(f"PROF_*/mindstudio_profiler_output/{name}_*.csv"))
    if not files:
        raise Wrong(f"msprof wrote no {name}_*.csv; it said: {' '.join(said.split())[-800:]}")
    return [row for file in files for row in csv.DictReader(file.read_text().splitlines())]


def _calls(api: Rows) -> Counter[str]:
    """How often each function of the runtime was called."""
    found: Counter[str] = Counter()
    for row in api:
        if row["API Name"].startswith("acl"):
            found[row["API Name"]] += int(row["Count"])
    return found


def _by_section(kernels: Rows, names: list[str]) -> dict[str, Rows]:
    """The kernels between markers, by the names of the sections in their order.

    Raises:
        Wrong: there are not as many markers as sections begin and end.
    """
    in_order = sorted(kernels, key=lambda row: float(row["Task Start Time(us)"]))
    parts = list(_split(in_order))[1:-1]
    if len(parts) != len(names):
        raise Wrong(f"msprof shows {len(parts)} sections between markers ({MARKER}); there were {len(names)}")
    return dict(zip(names, parts, strict=True))


def _split(kernels: Rows) -> Iterator[Rows]:
    part: Rows = []
    for row in kernels:
        if row["OP Type"] == MARKER:
            yield part
            part = []
        else:
            part.append(row)
    yield part
