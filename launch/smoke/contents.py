"""Parts manifest and doctor: what is installed, and what the doctor says of the machine."""

import os
from typing import Any

from launch.doctor.traits import PACKAGES
from launch.smoke.child import Setting, python, run
from launch.smoke.result import FAILED, Result, judged, not_applicable
from launch.stacks import STACK_VARIABLE

MANIFEST_SECONDS, DOCTOR_SECONDS = 300, 300
LONG = ("packages", "system_packages", "compiled")  # of a manifest: `images verify` reads them


def manifest(setting: Setting) -> list[Result]:
    """What the image is made of, in short."""
    if not os.environ.get(STACK_VARIABLE):
        return [not_applicable("manifest", f"this is no image of ours ({STACK_VARIABLE} is not set)")]
    ended = run(setting, "manifest", python("-m", "launch", "manifest", "--json"), MANIFEST_SECONDS, apart=True)
    found = ended.json()
    if ended.code or found is None:
        return [Result("manifest", FAILED, ended.seconds, reason=ended.why())]
    return [judged("manifest", [], ended.seconds, _in_short(found), _figures(found))]


def _figures(found: dict[str, Any]) -> dict[str, Any]:
    """The manifest without its long lists, and the versions that a reader asks for."""
    versions = {name: found["packages"][name]["version"] for name in PACKAGES if name in found["packages"]}
    return {name: value for name, value in found.items() if name not in LONG} | {"packages": versions}


def _in_short(found: dict[str, Any]) -> str:
    return " ".join(str(found[name]) for name in ("stack", "chip", "revision") if found[name])


def doctor(setting: Setting) -> list[Result]:
    """Its findings; errors fail."""
    ended = run(setting, "doctor", python("-m", "launch", "doctor", "--json"), DOCTOR_SECONDS, apart=True)
    report = ended.json()
    if report is None:
        return [Result("doctor", FAILED, ended.seconds, reason=ended.why())]
    findings = [one for host in report["hosts"] for one in host["findings"]]
    by_level = {level: [one for one in findings if one["level"] == level] for level in ("error", "warning", "ok")}
    errors = [f"{one['check']}: {one['what']} ({one['fix']})" for one in by_level["error"]]
    short = ", ".join(f"{len(found)} {level}" for level, found in by_level.items())
    figures = {"findings": [one for one in findings if one["level"] != "ok"], "traits": report["hosts"][0]["traits"]}
    return [judged("doctor", errors, ended.seconds, short, figures)]
