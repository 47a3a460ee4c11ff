"""The probes of `ascend-quant smoke` in processes of their own: one may end its process, or never return."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ascend_quant.smoke.probes import Probe
from ascend_quant.smoke.results import FAILED, Result
from launch.smoke.child import Setting, as_json, run

START_S = 300  # until the first probe begins: it imports torch and vLLM, and starts the driver


def carried_out(setting: Setting, probes: Sequence[Probe]) -> Iterator[Result]:
    """What came of each: quick ones share a process for as long as it lives, each slow one has its own."""
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
    ended = run(setting, name, command, START_S + sum(one.limit_s for one in probes))
    found = [Result(**one) for one in (as_json(out) or {"probes": []})["probes"]]
    if len(found) < len(probes):
        lost = probes[len(found)]
        found.append(Result(lost.name, lost.decides, FAILED, ended.seconds, ended.why()))
    return found
