"""The parts of the smoke test, run in sequence in processes with time limits; a failed part does not stop the others.

On one NPU, all limits add up to less than an hour.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ascend_quant import __version__
from ascend_quant.smoke.probes import Probe, is_in, probes_for
from ascend_quant.smoke.results import FAILED, NOT_APPLICABLE, OK, SCHEMA, Result, document, now, show, without_traces
from launch.doctor.drivers import devices as devices_of
from launch.smoke.setting import LAUNCH, Setting
from launch.smoke.training import NAN, TRAIN, train
from launch.system.software import CHIP_VARIABLE

START_S = 75  # until the first probe begins, which imports torch and vLLM and starts the driver
DOCTOR_S = 60
DOCTOR = "doctor"
ALONE = (DOCTOR, TRAIN, NAN)  # the parts that are no probes
HUNG = re.compile(r"^Timeout \(\d", re.MULTILINE)  # faulthandler's, at a probe's time limit
FINDS = "the doctor finds nothing that would stop a run"


def smoke(
    setting: Setting,
    wanted: Sequence[str],
    console: Console,
    before: Mapping[str, Any] | None = None,
    keep: Callable[[dict[str, Any]], None] = lambda content: None,
) -> dict[str, Any]:
    """Run the requested parts, print their results, and return the content of the JSON file (`left`: not run yet).

    Args:
        wanted: parts, probes and groups to run again; empty for all without a result, or that did not apply.
        before: content of an earlier run's file, without `differences`.
        keep: called with the content after each part.

    Raises:
        UnknownProbe: there is no such name; the message lists the valid ones.
    """
    probes, chosen = chosen_of(setting, wanted)
    earlier = [Result(**one) for one in before["probes"]] if before else []
    if not wanted:
        chosen -= {one.name for one in earlier if one.status != NOT_APPLICABLE}
    results = {one.name: one for one in earlier if one.name not in chosen}
    everything = [*ALONE, *(one.name for one in probes_for(setting.device))]
    spent, begun = (before["seconds"] if before else 0.0), time.monotonic()
    about = {"started": before["started"] if before else now()} | about_of(setting)

    def content() -> dict[str, Any]:
        left = [name for name in everything if name not in results]
        seconds = round(spent + time.monotonic() - begun, 1)
        return document([*results.values()], about | {"seconds": seconds, "left": left})

    for result in _results(setting, chosen, [one for one in probes if one.name in chosen]):
        result = replace(result, reason=without_traces(result.reason))
        show(result, console)
        results[result.name] = result
        keep(content())
    return content()


def chosen_of(setting: Setting, wanted: Sequence[str]) -> tuple[list[Probe], set[str]]:
    """Return the requested probes, and the names of all requested parts."""
    asked = [name for name in wanted if not any(is_in(one, name) for one in ALONE)]
    probes = probes_for(setting.device, asked) if asked or not wanted else []
    names = {name for name in ALONE if not wanted or any(is_in(name, one) for one in wanted)}
    return probes, names | {one.name for one in probes}


def about_of(setting: Setting) -> dict[str, Any]:
    """Return what two runs must have in common for one to continue the other's file."""
    return {
        "version": __version__,
        "stack": setting.stack,
        "chip": os.environ.get(CHIP_VARIABLE) or None,
        "device": setting.device,
        "steps": setting.steps,
    }


def differences(content: Mapping[str, Any], setting: Setting) -> list[str]:
    """Return how an earlier run's file differs in machine or test; then all parts are run again."""
    wanted = about_of(setting) | {"schema": SCHEMA}
    return [f"{name} {content.get(name)}" for name, value in wanted.items() if content.get(name) != value]


def _results(setting: Setting, chosen: Collection[str], probes: Sequence[Probe]) -> Iterator[Result]:
    """Yield the results of all parts; training precedes engines, since it is more likely to fail on a device."""
    if DOCTOR in chosen and setting.left > 0:
        yield from in_time(setting, [_doctor(setting)])
    yield from carried_out(setting, [one for one in probes if not one.slow])
    if {TRAIN, NAN} & set(chosen) and setting.left > 0:
        yield from in_time(setting, train(setting))
    yield from carried_out(setting, [one for one in probes if one.slow])


def in_time(setting: Setting, results: Sequence[Result]) -> Iterator[Result]:
    """Yield the results, without one that the total time limit interrupted, which is left for the next run."""
    yield from (one for one in results if setting.left > 0 or not one.broke)


def _doctor(setting: Setting) -> Result:
    """Run the doctor and return its findings as a result, which fails if there is an error."""
    file = "doctor.json"
    ended = setting.run(["sh", "-c", f'exec "$@" > {file}', "sh", *LAUNCH, "doctor", "--json"], DOCTOR, DOCTOR_S)
    try:
        report = json.loads((setting.folder / file).read_text())
    except (OSError, ValueError):  # the doctor did not finish
        return Result(DOCTOR, FINDS, FAILED, ended.seconds, ended.why(), broke=True)
    findings = [one for host in report["hosts"] for one in host["findings"]] + report["together"]
    by_level = {level: [one for one in findings if one["level"] == level] for level in ("error", "warning", "ok")}
    errors = ["{check}: {what} ({fix})".format(**one) for one in by_level["error"]]
    values: dict[str, Any] = {level: len(found) for level, found in by_level.items()}
    values["findings"] = [one for one in findings if one["level"] != "ok"]
    values["traits"] = report["hosts"][0]["traits"]
    return Result(DOCTOR, FINDS, FAILED if errors else OK, ended.seconds, "; ".join(errors), values)


def carried_out(setting: Setting, probes: Sequence[Probe]) -> Iterator[Result]:
    """Yield the results of `ascend-quant smoke`, whose probes may end their process, or never return.

    Quick probes share a process as long as it lives; each slow one has its own. Probes that need more devices than
    there are get no process.
    """
    left, there = list(probes), devices_of(setting.devices)
    while left and setting.left > 0:
        if there.found and (lacking := left[0].lacks(len(there.found))):
            found = [Result(left[0].name, left[0].decides, NOT_APPLICABLE, reason=lacking)]
        else:
            found = _together(setting, [left[0]] if left[0].slow else [one for one in left if not one.slow])
        yield from in_time(setting, found)
        left = [one for one in left if one.name not in {result.name for result in found}]


def _together(setting: Setting, probes: Sequence[Probe]) -> list[Result]:
    """Return the results up to the end of the process: at least the first, and all of them if it hung before any."""
    name = probes[0].name
    out = setting.folder / f"{name}.json"
    command = [str(Path(sys.executable).with_name("ascend-quant")), "smoke", "--device", setting.device]
    command += ["--out", str(out), *(word for one in probes for word in ("--only", one.name))]
    ended = setting.run(command, name, START_S + sum(one.limit_s for one in probes))
    found = [Result(**one) for one in json.loads(out.read_text())["probes"]] if out.exists() else []
    late = HUNG.search(ended.log.read_text(errors="replace"))
    for lost in probes[len(found) :] if ended.code is None and not found else probes[len(found) :][:1]:
        why = f"it took more than {lost.limit_s:.0f} s; {ended.why()}" if late else ended.why()
        found.append(Result(lost.name, lost.decides, FAILED, ended.seconds, why, broke=True))
    return found
