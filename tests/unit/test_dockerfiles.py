"""Dockerfiles and their steps take nothing that is not pinned: no moving branch, tag, archive or unhashed package."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launch import ROOT

DOCKERFILES = sorted((ROOT / "docker").glob("Dockerfile*"))
SCRIPTS = sorted((ROOT / "docker").glob("*.sh")) + sorted((ROOT / "docker" / "steps").glob("*.sh"))
ADDRESS = re.compile(r"\w+://")
FROM = re.compile(r"FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE)


def lines(text: str) -> list[str]:
    """The logical lines: continued ones joined, comments left out."""
    kept = [re.sub(r"\s# .*", "", line) for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(kept))
    return [line.strip() for line in joined.splitlines() if line.strip()]


def unpinned_base(all_lines: list[str]) -> Iterator[str]:
    """FROM takes a digest, the argument BASE (the bake file has its digest), nothing, or an earlier stage."""
    stages = {"scratch", "${BASE}"}
    for line in all_lines:
        if found := FROM.match(line):
            base, name = found.groups()
            if base not in stages and "@sha256:" not in base:
                yield line
            stages.add(name)


def downloads(all_lines: list[str]) -> Iterator[str]:
    """Nothing is fetched by its address: not by ADD, not by a program."""
    for line in all_lines:
        if re.match(r"ADD\s", line) or re.search(r"\b(curl|wget)\b", line):
            yield line


def moving_sources(all_lines: list[str]) -> Iterator[str]:
    """Of git, only a fetch of a commit by its digits ($3 in sources.sh, which looks at what came)."""
    for line in all_lines:
        of_a_commit = re.search(r"\bfetch\b.*(\$3:|\b[0-9a-f]{40}\b)", line)
        if re.search(r"\bgit\b.*\b(clone|pull|fetch)\b", line) and not of_a_commit:
            yield line


def unhashed_packages(all_lines: list[str]) -> Iterator[str]:
    """pip and uv install what a lock has hashes for, files that are there, or a commit, built with what is there."""
    for line in all_lines:
        if not re.search(r"\bpip3?\b.*\binstall\b", line):
            continue
        commit = (
            re.search(r"@ git\+\$repository@\$commit\b|@ git\+\S+@[0-9a-f]{40}\b", line)
            and "--no-build-isolation" in line
        )
        local = "--no-index" in line
        if "--no-deps" not in line or not ("--require-hashes" in line or local or commit):
            yield line


def loose_system_packages(all_lines: list[str]) -> Iterator[str]:
    """apt-get works from the snapshot's sources alone."""
    for line in all_lines:
        if re.search(r"\bapt(-get)?\s.*\b(install|update|upgrade)\b", line) and not re.search(
            r"SourceParts=\S*\$folder/parts", line
        ):
            yield line


def latest(all_lines: list[str]) -> Iterator[str]:
    for line in all_lines:
        if re.search(r"\blatest\b", line):
            yield line


def edits_in_place(all_lines: list[str]) -> Iterator[str]:
    """Installed packages stay as they are: invariant 7 of the design."""
    for line in all_lines:
        if re.search(r"\bsed\b.*\s(-\w*i\w*|--in-place)\b", line) or re.search(r"(^|[\s;&|])patch\s+(-|<)", line):
            yield line


def addresses(all_lines: list[str]) -> Iterator[str]:
    """No index, mirror or repository is written into a Dockerfile: they are arguments."""
    for line in all_lines:
        if ADDRESS.search(line) or re.search(r"\b(INDEX_URL|PASSWORD|TOKEN|SECRET)\b=\S", line):
            yield line


Rule = Callable[[list[str]], Iterator[str]]
OF_ALL: list[Rule] = [moving_sources, unhashed_packages, downloads, latest, edits_in_place, loose_system_packages]
OF_DOCKERFILES: list[Rule] = [*OF_ALL, unpinned_base, addresses]


@pytest.mark.parametrize("rule", OF_DOCKERFILES, ids=lambda rule: rule.__name__)
def test_dockerfiles_and_their_steps_take_only_what_is_pinned(rule):
    files = [*DOCKERFILES, *(SCRIPTS if rule in OF_ALL else [])]
    assert len(files) >= 3
    assert {file.name: found for file in files if (found := list(rule(lines(file.read_text()))))} == {}


def hadolint() -> str:
    return shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint") or ""


@pytest.mark.skipif(not hadolint(), reason="hadolint is not installed: ./run.sh setup brings it")
def test_hadolint_is_content():
    done = subprocess.run([hadolint(), "--no-color", *DOCKERFILES], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_built_from_source_has_no_network():
    """Everything that it would fetch is among the pinned sources: nothing else can come."""
    found = [line for line in lines((ROOT / "docker" / "Dockerfile.ascend").read_text()) if "from_source.sh" in line]
    assert len(found) == 2 and all(line.startswith("RUN --network=none ") for line in found)
