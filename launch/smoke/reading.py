"""Verdicts of the smoke test's JSON files on docs/ascend.md's claims: printed, as JSON, and written into both pages."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascend_quant.smoke.claims import decided
from ascend_quant.smoke.judging import OPEN, PROVED, REFUTED, Decided
from ascend_quant.smoke.results import SCHEMA, Result
from launch import ROOT, LaunchError, generated

COMMAND = "./run.sh smoke --read FILE --write"
STYLES = {PROVED: "green", REFUTED: "bold red", OPEN: "yellow"}


@dataclass(frozen=True)
class Words:
    """Words of a page's language."""

    head: str
    verdicts: dict[str, str]
    not_run: str
    nothing: str
    read: str


PAGES = {
    "docs/ascend.md": Words(
        "| claim | decided by | on a device |",
        {PROVED: "**proved**", REFUTED: "**refuted**", OPEN: "open"},
        "not run",
        "No device has decided one yet.",
        "Read from: {}.",
    ),
    "docs/ascend.zh.md": Words(
        "| 说法 | 由什么判定 | 设备上的结果 |",
        {PROVED: "**证实**", REFUTED: "**推翻**", OPEN: "未定"},
        "未运行",
        "还没有设备判定过其中任何一条。",
        "取自：{}。",
    ),
}


@dataclass(frozen=True)
class Read:
    """Contents of one file: on what it was made, and the results by their names."""

    about: str
    results: dict[str, Result]


def read(file: Path) -> Read:
    """Read a file of the smoke test on an NPU.

    Raises:
        LaunchError: it is another one.
    """
    try:
        content: dict[str, Any] = json.loads(file.read_text())
        schema, device = content["schema"], content["device"]
        if schema != SCHEMA:
            raise LaunchError(f"--read {file}: has schema {schema}, but this version reads {SCHEMA}: run smoke again")
        if device != "npu":
            raise LaunchError(f"--read {file}: was made on {device}; the claims are about NPUs")
        return _read(content)
    except (OSError, ValueError, KeyError, TypeError) as why:
        raise LaunchError(f"--read {file}: is not JSON from ./run.sh smoke: {type(why).__name__}: {why}") from why


def _read(content: dict[str, Any]) -> Read:
    results = {one["name"]: Result(**one) for one in content["probes"]}
    versions = results["versions"].values if "versions" in results else {}
    packages = [f"{name} {versions[name]}" for name in ("vllm-ascend", "torch-npu", "CANN", "verl") if name in versions]
    about = [f"{versions.get('devices', '?')} x {versions.get('device', 'NPU')}", content["stack"], *packages]
    return Read(", ".join([*about, f"ascend-quant {content['version']}", content["started"][:10]]), results)


def verdicts(files: Sequence[Read]) -> list[Decided]:
    """Return the verdict on every claim."""
    return decided([one.results for one in files])


def in_short(found: Sequence[Decided]) -> str:
    """Count each verdict, in words."""
    counts = Counter(one.verdict for one in found)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in (PROVED, REFUTED, OPEN))


def table(words: Words, files: Sequence[Read]) -> str:
    """Return the section of a page, as Markdown."""
    lines = [words.head, "|---|---|---|"]
    for one in verdicts(files) if files else decided([{}]):
        says = one.claim.says if words is PAGES["docs/ascend.md"] else one.claim.says_zh
        probes = ", ".join(f"`{name}`" for name in one.claim.probes)
        seen = ": ".join(part for part in (words.verdicts[one.verdict], one.seen) if part)
        lines.append(f"| {says} | {probes} | {seen if files else words.not_run} |")
    told = words.read.format("; ".join(one.about for one in files)) if files else words.nothing
    return "\n".join([told, "", *lines, ""])


def pages(files: Sequence[Read], root: Path | None = None) -> dict[Path, str]:
    """Return both pages with the section that the files give; without files as no device has run.

    Raises:
        LaunchError: they are not here, or have lost their marks.
    """
    root = root or ROOT
    return {root / name: generated.replaced(root / name, COMMAND, table(words, files)) for name, words in PAGES.items()}
