"""The release workflow: its own steps, run here as far as they need no index, and what it may do."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import tomllib
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
JOBS = WORKFLOW["jobs"]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def commands(job: str) -> list[str]:
    return [step["run"] for step in JOBS[job]["steps"] if "run" in step]


@pytest.mark.parametrize(
    ("tag", "code"), [(f"v{VERSION}", 0), (VERSION, 1), (f"v{VERSION}.1", 1), ("v99.0.0", 1), (f"v{VERSION}rc1", 1)]
)
def test_a_tag_must_be_the_version(tag: str, code: int):
    (check,) = [step for step in JOBS["build"]["steps"] if "GITHUB_REF_NAME" in step.get("run", "")]
    assert check["if"] == "github.ref_type == 'tag'"
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", check["run"]]  # as GitHub starts it
    done = subprocess.run(shell, cwd=ROOT, env=os.environ | {"GITHUB_REF_NAME": tag}, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert (tag in done.stdout and f"v{VERSION}" in done.stdout) == bool(code)


def test_it_uploads_only_where_it_was_switched_on():
    assert JOBS["publish"]["needs"] == "build"
    assert "vars.PYPI_RELEASES != ''" in JOBS["publish"]["if"] and "ref_type == 'tag'" in JOBS["publish"]["if"]
    assert "gh-action-pypi-publish" not in str(JOBS["build"]) and not commands("publish")


def test_each_job_may_do_its_own_work_alone():
    assert WORKFLOW["permissions"] == {}
    assert {name: job["permissions"] for name, job in JOBS.items()} == {
        "build": {"contents": "read"},
        "publish": {"id-token": "write"},
    }
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text()
    assert JOBS["publish"]["environment"] == "pypi"


def test_what_it_uses_is_pinned_by_commit_and_by_hash():
    uses = [step["uses"] for job in JOBS.values() for step in job["steps"] if "uses" in step]
    assert uses and all(re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", one) for one in uses)
    (install,) = [command for command in commands("build") if "pip install" in command]
    assert "--require-hashes" in install
    assert (ROOT / install.split()[-1]).is_file()


def test_it_builds_both_and_checks_them():
    names = {entry.split("==")[0] for entry in (ROOT / "docker/locks/release.txt").read_text().splitlines()}
    assert {"build", "twine", "setuptools"} <= names
    after = " ".join(commands("build"))
    assert re.search(r"-m build .*-m twine check --strict dist/\*", after)
