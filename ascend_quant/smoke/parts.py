"""The parts of the smoke test, run in sequence in processes with time limits; a failed part does not stop the others.

On one NPU, all limits add up to less than an hour.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from ascend_quant import __version__
from ascend_quant.processes.environment import CHIP_VARIABLE
from ascend_quant.smoke.probes import Probe, is_in, probes_for
from ascend_quant.smoke.results import FAILED, NOT_APPLICABLE, OK, SCHEMA, Result, document, now, show, without_traces
from ascend_quant.smoke.setting import Setting
from ascend_quant.smoke.training import NAN, TRAIN, train

START_S = 75  # until the first probe begins, which imports torch and vLLM and starts the driver
DOCTOR_S = 60
DOCTOR = "doctor"
DOCTORS = (sys.executable, "-m", "launch", "doctor", "--json")  # its command, in a checkout or an image
HUNG = re.compile(r"^Timeout \(\d", re.MULTILINE)  # faulthandler's, at a probe's time limit
FINDS = "the doctor finds nothing that would stop a run"


class Parts:
    """The parts of one smoke test, and their results by name, also of an earlier run that is continued.

    Attributes:
        keep: called with the content of the JSON file after each part.
    """

    def __init__(
        self,
        setting: Setting,
        console: Console,
        before: Mapping[str, Any] | None = None,
        keep: Callable[[dict[str, Any]], None] = lambda content: None,
    ) -> None:
        """Take the content of an earlier run's file, without `differences`, if there is one."""
        self.setting, self.console, self.keep = setting, console, keep
        self.results = {one["name"]: Result(**one) for one in before["probes"]} if before else {}
        self.started = before["started"] if before else now()
        self.spent, self.begun = (before["seconds"] if before else 0.0), time.monotonic()

    def run(self, wanted: Sequence[str]) -> dict[str, Any]:
        """Run the requested parts, print their results, and return the content of the file (`left`: not run yet).

        Args:
            wanted: parts, probes and groups to run again; empty for all without a result, or that did not apply.

        Raises:
            UnknownProbe: there is no such name; the message lists the valid ones.
        """
        probes, chosen = chosen_of(self.setting, wanted)
        if not wanted:
            chosen -= {one.name for one in self.results.values() if one.status != NOT_APPLICABLE}
        for name in chosen:
            self.results.pop(name, None)
        for result in self._results(chosen, [one for one in probes if one.name in chosen]):
            if self.setting.left <= 0 and result.broke:  # the total time limit has interrupted it: left for the next
                continue
            result = replace(result, reason=without_traces(result.reason))
            show(result, self.console)
            self.results[result.name] = result
            self.keep(self.content())
        return self.content()

    def content(self) -> dict[str, Any]:
        """Return the content of the JSON file."""
        everything = [*alone(self.setting), *(one.name for one in probes_for(self.setting.device))]
        left = [name for name in everything if name not in self.results]
        seconds = round(self.spent + time.monotonic() - self.begun, 1)
        about = {"started": self.started} | about_of(self.setting) | {"seconds": seconds, "left": left}
        return document([*self.results.values()], about)

    def _results(self, chosen: set[str], probes: Sequence[Probe]) -> Iterator[Result]:
        """Yield the results of all parts; training precedes engines, since it is more likely to fail on a device."""
        if DOCTOR in chosen and self.setting.left > 0:
            yield doctor(self.setting)
        yield from self._carried_out([one for one in probes if not one.slow])
        if {TRAIN, NAN} & chosen and self.setting.left > 0:
            yield from train(self.setting, self.results)
        yield from self._carried_out([one for one in probes if one.slow])

    def _carried_out(self, probes: Sequence[Probe]) -> Iterator[Result]:
        """Yield the results of probes, which may end their process, or never return.

        Quick probes share a process as long as it lives; each slow one has its own. Probes that need more devices than
        there are get no process.
        """
        left = list(probes)
        while left and self.setting.left > 0:
            seen = self.results["versions"].values if "versions" in self.results else {}
            if lacking := left[0].lacks(seen.get("devices", left[0].ranks)):
                found = [Result(left[0].name, left[0].decides, NOT_APPLICABLE, reason=lacking)]
            else:
                found = together(self.setting, [left[0]] if left[0].slow else left)
            yield from found
            left = [one for one in left if one.name not in {result.name for result in found}]


def alone(setting: Setting) -> list[str]:
    """Return the parts that are no probes."""
    return [*([DOCTOR] if setting.doctor else []), TRAIN, NAN]


def chosen_of(setting: Setting, wanted: Sequence[str]) -> tuple[list[Probe], set[str]]:
    """Return the requested probes, and the names of all requested parts."""
    others = alone(setting)
    asked = [name for name in wanted if not any(is_in(one, name) for one in others)]
    probes = probes_for(setting.device, asked) if asked or not wanted else []
    names = {name for name in others if not wanted or any(is_in(name, one) for one in wanted)}
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


def doctor(setting: Setting) -> Result:
    """Run the launcher's doctor and return its findings as a result, which fails if there is an error."""
    file = "doctor.json"
    ended = setting.run(["sh", "-c", f'exec "$@" > {file}', "sh", *DOCTORS], DOCTOR, DOCTOR_S)
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


def together(setting: Setting, probes: Sequence[Probe]) -> list[Result]:
    """Return the results up to the end of the process: at least the first, and all of them if it hung before any."""
    name = probes[0].name
    out = setting.folder / f"{name}.json"
    command = [sys.executable, "-m", "ascend_quant.smoke", setting.device, str(out)]
    command += [",".join(one.name for one in probes), *map(str, setting.checkpoints or ())]
    ended = setting.run(command, name, START_S + sum(one.limit_s for one in probes))
    found = [Result(**one) for one in json.loads(out.read_text())["probes"]] if out.exists() else []
    late = HUNG.search(ended.log.read_text(errors="replace"))
    for lost in probes[len(found) :] if ended.code is None and not found else probes[len(found) :][:1]:
        why = f"it took more than {lost.limit_s:.0f} s; {ended.why()}" if late else ended.why()
        found.append(Result(lost.name, lost.decides, FAILED, ended.seconds, why, broke=True))
    return found
