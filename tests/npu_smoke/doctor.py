"""`./run.sh doctor` on this machine."""

import json
import sys

from npu_smoke import tools
from npu_smoke.checks import IN_SHORT, Setting, Wrong, check, require

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
    numbers["findings"] = [one for one in found if one["level"] != "ok"]
    levels = {level: sum(one["level"] == level for one in found) for level in ("ok", "warning", "error")}
    numbers[IN_SHORT] = ", ".join(f"{count} {level}" for level, count in levels.items())
    for one in numbers["findings"]:
        require(bool(one["fix"]), f"{one['check']}: {one['what']}: nothing is said of what to do")
        require(A_BUG not in one["fix"], f"{one['check']}: {one['what']}: {one['fix']}")
