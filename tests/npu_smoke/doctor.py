"""`./run.sh doctor` on this machine."""

import json
import re
import sys

from npu_smoke import tools
from npu_smoke.checks import IN_SHORT, Setting, Wrong, check, require, without_traces

PACKAGES = ("typer", "rich", "pydantic", "yaml", "psutil")  # what every command of run.sh imports
SECONDS = 180.0
A_BUG = "report this as a bug"  # the doctor's own words where it knows no better


@check("doctor.findings", needed=False, limit_s=SECONDS + 30)
def findings(on: Setting, numbers: dict) -> None:
    """Does the doctor know what each of its findings comes from, and what to do about it?"""
    tools.need_packages(*PACKAGES)
    variables = {"PYTHON": sys.executable, "ASCEND_QUANT_STACK": tools.stack()}
    with tools.folder() as folder:
        code, said = tools.run([tools.RUN, "doctor", "--json"], SECONDS, folder, variables)
    begin = said.find("{")
    try:
        report, _ = json.JSONDecoder().raw_decode(said[begin:])  # libraries may talk before it and behind it
    except ValueError:
        raise Wrong(f"run.sh doctor ended with {code}: {' '.join(said.split())[-800:]}") from None
    found = [one for host in report["hosts"] for one in host["findings"]] + report["together"]
    numbers["findings"] = [
        {key: _without_traces(one[key]) for key in ("level", "check", "what", "fix")}
        for one in found
        if one["level"] != "ok"
    ]
    levels = {level: sum(one["level"] == level for one in found) for level in ("ok", "warning", "error")}
    numbers[IN_SHORT] = ", ".join(f"{count} {level}" for level, count in levels.items())
    for one in numbers["findings"]:
        require(bool(one["fix"]), f"{one['check']}: {one['what']}: nothing is said of what to do")
        require(A_BUG not in one["fix"], f"{one['check']}: {one['what']}: {one['fix']}")


def _without_traces(text: str) -> str:
    """Nor with this host's addresses, which the doctor names."""
    return re.sub(
        r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])|\b(?:[0-9a-f]{1,4}:){3,}[0-9a-f:]+",
        "(address)",
        without_traces(text),
    )
