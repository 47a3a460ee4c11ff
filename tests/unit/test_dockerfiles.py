"""Dockerfiles and their steps take nothing that is not pinned: no moving branch, tag, archive or unhashed package."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launch.root import ROOT

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


def test_all_are_read():
    assert {file.name for file in DOCKERFILES} == {"Dockerfile.ascend", "Dockerfile.cpu", "Dockerfile.cuda"}
    assert {"apt.sh", "python.sh", "sources.sh", "from_source.sh", "uv.sh", "trim.sh", "ours.sh"} <= {
        file.name for file in SCRIPTS
    }


@pytest.mark.parametrize("rule", OF_DOCKERFILES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_a_dockerfile_takes_only_what_is_pinned(file, rule):
    assert list(rule(lines(file.read_text()))) == []


@pytest.mark.parametrize("rule", OF_ALL, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_a_step_takes_only_what_is_pinned(file, rule):
    assert list(rule(lines(file.read_text()))) == []


BAD = {
    "FROM debian:bookworm-slim": unpinned_base,
    "FROM --platform=linux/amd64 ubuntu AS one": unpinned_base,
    "ADD https://example.org/a.tar /a": downloads,
    "RUN echo well && curl -fsSL $ADDRESS | sh": downloads,
    "RUN git clone --depth 1 https://github.com/vllm-project/vllm": moving_sources,
    "RUN git clone \\\n  --branch v0.23.0 $REPOSITORY": moving_sources,
    "RUN git -C /src fetch origin main": moving_sources,
    "RUN pip install vllm==0.23.0": unhashed_packages,
    "RUN uv pip install -r requirements.txt": unhashed_packages,
    "RUN python3 -m pip install --no-deps \\\n  git+https://github.com/verl-project/verl@main": unhashed_packages,
    "RUN pip install --require-hashes -r lock.txt": unhashed_packages,  # what the lock forgot would come, unpinned
    "RUN apt-get update && apt-get install -y git": loose_system_packages,
    "FROM ${BASE}:latest": latest,
    "RUN sed -i '12s/a/b/' /opt/venv/lib/python3.11/site-packages/vllm/config.py": edits_in_place,
    "RUN sed -Ei s/a/b/ $(python -c 'import verl; print(verl.__file__)')": edits_in_place,
    "RUN cd /src && patch -p1 < ours.patch": edits_in_place,
    "ENV PIP_INDEX_URL=https://mirror.example.org/simple": addresses,
    "ARG INDEX_URL=mirror": addresses,
}


@pytest.mark.parametrize("text", BAD)
def test_each_rule_sees_what_it_is_for(text):
    assert list(BAD[text](lines(f"# A bad Dockerfile.\n{text}\n"))), BAD[text].__name__


GOOD = """\
# FROM debian:latest, pip install and sed -i in a comment are nobody's business.
FROM ${BASE} AS one
FROM one AS two
FROM docker.io/library/debian:bookworm-slim@sha256:0000 AS three
FROM scratch AS four
RUN pip install --no-deps --require-hashes -r lock.txt
RUN uv pip install --no-deps --no-index /out/a.whl
RUN sed s/a/b/ one >two
"""


@pytest.mark.parametrize("rule", OF_DOCKERFILES, ids=lambda rule: rule.__name__)
def test_no_rule_complains_of_good_ones(rule):
    assert list(rule(lines(GOOD))) == []


def hadolint() -> str:
    return shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint") or ""


@pytest.mark.skipif(not hadolint(), reason="hadolint is not installed: ./run.sh setup brings it")
@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_hadolint_is_content(file):
    done = subprocess.run([hadolint(), "--no-color", file], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_the_final_stage_says_what_every_image_says(file):
    """Labels, health, the entry point, and none of the build's own mounts copied into it."""
    final = lines(file.read_text().partition(" AS final")[2])
    words = " ".join(final)
    for label in ("title", "description", "licenses", "version", "revision", "base.name"):
        assert f"org.opencontainers.image.{label}=" in words
    assert "ascend-quant.stack=" in words and "HEALTHCHECK" in words and "tini" in words
    copied = [line for line in final if "--from=" in line and line.startswith("COPY")]
    assert copied == ["COPY --link --from=trimmed /opt/venv /opt/venv"]


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_what_is_ours_comes_after_the_packages(file):
    """A registry that has an image receives little of the next commit's: the packages are a layer of their own."""
    text = file.read_text()
    final = lines(text.partition(" AS final")[2])
    packages = final.index("COPY --link --from=trimmed /opt/venv /opt/venv")
    assert not [line for line in final[:packages] if line.startswith(("COPY", "ENV", "LABEL"))]
    (ours,) = [place for place, line in enumerate(final) if "/steps/ours.sh" in line]
    assert ours > packages and not [line for line in final[ours + 1 :] if line.startswith(("COPY", "RUN"))]
    taken = [line for line in lines(text) if re.search(r"ascend_quant|\blaunch\b|benchmarks|configs|README", line)]
    before = lines(text.partition(" AS wheel\n")[0])
    assert taken and not set(taken) & set(before)


@pytest.mark.parametrize("step", ["uv", "python", "sdists", "trim"])
@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_a_layer_of_packages_depends_on_its_own_steps_alone(file, step):
    """With the whole folder of steps, a change of any would build and ship the packages again."""
    found = [line for line in lines(file.read_text()) if f" /steps/{step}.sh" in line]
    assert found or step == "sdists"  # which one stack has
    assert all("source=docker/steps/" in line and "source=docker/steps," not in line for line in found)


def test_what_is_built_from_source_has_no_network():
    """Everything that it would fetch is among the pinned sources: nothing else can come."""
    found = [line for line in lines((ROOT / "docker" / "Dockerfile.ascend").read_text()) if "from_source.sh" in line]
    assert len(found) == 2 and all(line.startswith("RUN --network=none ") for line in found)
