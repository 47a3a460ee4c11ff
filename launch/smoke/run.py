"""Everything one after the other; what fails, however it fails, does not stop the others."""

import datetime
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ascend_quant import __version__
from ascend_quant.smoke.probes import Probe, probes_for
from ascend_quant.smoke.results import FAILED, OK, Result, document, show
from launch.smoke import train
from launch.smoke.child import DEVICES, Setting, python, run
from launch.smoke.probes import carried_out
from launch.software import CHIP_VARIABLE

DOCTOR, DOCTOR_SECONDS = "doctor", 300
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
        yield _doctor(setting)
    yield from carried_out(setting, [one for one in probes if not one.slow])
    if train.NAME in alone:
        yield train.train(setting)
    yield from carried_out(setting, [one for one in probes if one.slow])


def _doctor(setting: Setting) -> Result:
    """Its findings; errors fail."""
    ended = run(setting, DOCTOR, python("-m", "launch", "doctor", "--json"), DOCTOR_SECONDS, apart=True)
    report = ended.json()
    if report is None:
        return Result(DOCTOR, FINDS, FAILED, ended.seconds, ended.why())
    findings = [one for host in report["hosts"] for one in host["findings"]]
    by_level = {level: [one for one in findings if one["level"] == level] for level in ("error", "warning", "ok")}
    errors = [f"{one['check']}: {one['what']} ({one['fix']})" for one in by_level["error"]]
    values: dict[str, Any] = {level: len(found) for level, found in by_level.items()}
    values |= {"findings": [one for one in findings if one["level"] != "ok"], "traits": report["hosts"][0]["traits"]}
    return Result(DOCTOR, FINDS, FAILED if errors else OK, ended.seconds, "; ".join(errors), values)
