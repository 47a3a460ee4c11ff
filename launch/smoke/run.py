"""Everything one after the other; what fails, however it fails, does not stop the others."""

import datetime
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from ascend_quant import __version__
from ascend_quant.smoke.probes import Probe, probes_for
from ascend_quant.smoke.results import FAILED, OK, Result, document, show
from launch.child import run
from launch.doctor.hosts import examine
from launch.smoke import DEVICES, Setting, train
from launch.software import CHIP_VARIABLE

DOCTOR = "doctor"
START_S = 300  # until the first probe begins: it imports torch and vLLM, and starts the driver
ALONE = (DOCTOR, train.NAME)  # no probes
FINDS = "the doctor finds nothing that would stop a run"


def smoke(stack: str, devices: str, steps: int, wanted: Sequence[str], console: Console) -> dict[str, Any]:
    """Carry out what is wanted (all for none), show what comes of it, return what the JSON file holds.

    Raises:
        UnknownProbe: a name that there is not, and those that there are.
    """
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    alone = [name for name in ALONE if not wanted or name in wanted]
    others, begun = [name for name in wanted if name not in ALONE], time.monotonic()
    probes = probes_for(DEVICES[devices], others) if others or not wanted else []
    setting, results = Setting(stack, devices, Path(tempfile.mkdtemp(prefix="aq-smoke-")), steps), []
    for result in _results(setting, alone, probes):
        show(result, console)
        results.append(result)
    about = {
        "version": __version__,
        "started": started,
        "seconds": round(time.monotonic() - begun, 1),
        "stack": stack,
        "chip": os.environ.get(CHIP_VARIABLE) or None,
        "device": setting.device,
    }
    content = document(results, about)
    if content["ok"]:
        shutil.rmtree(setting.folder)
    else:
        console.print(f"logs: {setting.folder}", soft_wrap=True)
    return content


def _results(setting: Setting, alone: Sequence[str], probes: Sequence[Probe]) -> Iterator[Result]:
    """Training comes before engines and speeds: it is likeliest to break on a device."""
    if DOCTOR in alone:
        yield _doctor()
    yield from carried_out(setting, [one for one in probes if not one.slow])
    if train.NAME in alone:
        yield train.train(setting)
    yield from carried_out(setting, [one for one in probes if one.slow])


def _doctor() -> Result:
    """Its findings; errors fail."""
    begun = time.monotonic()
    report = examine()
    by_level = {level: [one for one in report.findings if one.level == level] for level in ("error", "warning", "ok")}
    errors = [f"{one.check}: {one.what} ({one.fix})" for one in by_level["error"]]
    values: dict[str, Any] = {level: len(found) for level, found in by_level.items()}
    values["findings"] = [asdict(one) for one in report.findings if one.level != "ok"]
    values["traits"] = report.hosts[0].traits
    seconds = round(time.monotonic() - begun, 1)
    return Result(DOCTOR, FINDS, FAILED if errors else OK, seconds, "; ".join(errors), values)


def carried_out(setting: Setting, probes: Sequence[Probe]) -> Iterator[Result]:
    """The results of `ascend-quant smoke`, whose probes may end their process, or never return.

    Quick ones share a process for as long as it lives, each slow one has its own.
    """
    left = list(probes)
    while left:
        together = [left[0]] if left[0].slow else [one for one in left if not one.slow]
        for result in _together(setting, together):
            left = [one for one in left if one.name != result.name]
            yield result


def _together(setting: Setting, probes: Sequence[Probe]) -> list[Result]:
    """The results until the process ended; of the first at least."""
    name = probes[0].name
    out = setting.folder / f"{name}.json"
    command = [str(Path(sys.executable).with_name("ascend-quant")), "smoke", "--device", setting.device]
    command += ["--out", str(out), *(word for one in probes for word in ("--only", one.name))]
    ended = run(command, setting.folder, name, START_S + sum(one.limit_s for one in probes), setting.stack)
    found = [Result(**one) for one in json.loads(out.read_text())["probes"]] if out.exists() else []
    if len(found) < len(probes):
        lost = probes[len(found)]
        found.append(Result(lost.name, lost.decides, FAILED, ended.seconds, ended.why()))
    return found
