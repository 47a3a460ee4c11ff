"""The workflows are safe: pinned actions, few rights, nothing of a pull request on a runner of one's own.

And they leave nothing out: a job for every group of tests and for every image whose base is pinned.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from bake_file import IMAGES, UNKNOWN, arguments

from launch import ROOT
from launch.recipes.stacks import pins

ACTIONS = sorted((ROOT / ".github/actions").glob("*/action.yml"))
TEXTS = {file.stem: file.read_text() for file in sorted((ROOT / ".github/workflows").glob("*.yml"))}
TREES = {name: yaml.safe_load(text) for name, text in TEXTS.items()}
SELF_HOSTED = ("gpu-smoke", "npu-smoke")
RELEASE = "release"  # trusted publishing asks GitHub for a token of its own
GITHUBS = {"ubuntu-24.04", "ubuntu-24.04-arm"}
ALL_TEXTS = [*TEXTS.values(), *(file.read_text() for file in ACTIONS)]
SMOKE = {"CUDA_RUNNERS": "yes", "ASCEND_RUNNERS": "yes"}


def jobs(name: str) -> Iterator[dict[str, Any]]:
    yield from TREES[name]["jobs"].values()


def steps(name: str) -> Iterator[dict[str, Any]]:
    for job in jobs(name):
        yield from job["steps"]


def asked(expression: str, **contexts: dict) -> Any:
    """What GitHub makes of an expression of names, strings, ==, !=, && and ||. A name that is not there is ''."""
    inner = re.sub(r"^\s*\$\{\{(.*)\}\}\s*$", r"\1", expression, flags=re.DOTALL)
    python = inner.replace("&&", " and ").replace("||", " or ").strip()
    return eval(" ".join(python.split()), {name: _Context(fields) for name, fields in contexts.items()})


class _Context(SimpleNamespace):
    def __init__(self, fields: dict) -> None:
        super().__init__(**{key: _Context(one) if isinstance(one, dict) else one for key, one in fields.items()})

    def __getattr__(self, name: str) -> Any:
        return _Context({})

    def __eq__(self, other: object) -> bool:
        return other == "" and not vars(self)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return bool(vars(self))


def smoke_runs(name: str, event: str, of: str = "", conclusion: str = "success", variables: dict = SMOKE) -> bool:
    """Whether the job of a smoke workflow would run, after a run of `images` that the event `of` began."""
    (job,) = jobs(name)
    about = {"event": {"workflow_run": {"event": of, "conclusion": conclusion}}} if of else {}
    return bool(asked(job["if"], github={"event_name": event} | about, vars=variables))


def test_actions_are_pinned_by_commit_with_their_version_and_alike():
    used = [line.split("uses:")[1].strip() for text in ALL_TEXTS for line in text.splitlines() if "uses:" in line]
    theirs = [one for one in used if not one.startswith("./")]
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", one) for one in theirs), theirs
    assert len(set(theirs)) == len({one.split("@")[0] for one in theirs})
    described = [step for file in ACTIONS for step in yaml.safe_load(file.read_text())["runs"]["steps"]]
    assert len(used) == sum("uses" in step for step in [*described, *(one for name in TREES for one in steps(name))])


def test_our_own_actions_are_there_and_are_given_what_they_ask_for():
    ours = [step for name in TREES for step in steps(name) if step.get("uses", "").startswith("./")]
    assert ours
    for step in ours:
        action = yaml.safe_load((ROOT / step["uses"] / "action.yml").read_text())
        assert set(step.get("with", {})) <= set(action["inputs"])


WRITES = {"newest": {"contents": "read", "issues": "write"}}


@pytest.mark.parametrize("name", TREES)
def test_rights_time_and_company_are_bounded(name: str):
    tree = TREES[name]
    assert tree["permissions"] in ({}, {"contents": "read"}) and "group" in tree["concurrency"]
    for job in jobs(name):
        assert job["timeout-minutes"] <= 240
        if name != RELEASE:
            assert job.get("permissions") == WRITES.get(name)
    for step in steps(name):
        assert "checkout" not in step.get("uses", "") or step["with"]["persist-credentials"] is False


def test_a_secret_is_for_pushes_of_main_alone():
    for name in TREES:
        for step in steps(name):
            assert "secrets." not in str(step) or "github.ref == 'refs/heads/main'" in step["if"]


@pytest.mark.parametrize("name", SELF_HOSTED)
def test_a_smoke_does_not_follow_a_pull_request(name: str):
    """A fork's branch may be called main too: `branches` alone does not keep its pull request out."""
    assert not smoke_runs(name, "workflow_run", of="pull_request")
    assert smoke_runs(name, "workflow_run", of="push") and smoke_runs(name, "workflow_run", of="schedule")
    assert smoke_runs(name, "workflow_run", of="push", conclusion="failure")  # one image failed, others are new
    assert not smoke_runs(name, "workflow_run", of="push", conclusion="cancelled")
    assert smoke_runs(name, "workflow_dispatch") and not smoke_runs(name, "workflow_dispatch", variables={})


@pytest.mark.parametrize("name", sorted(set(TREES) - set(SELF_HOSTED)))
def test_a_pull_request_gets_a_machine_of_github_s(name: str):
    for job in jobs(name):
        where = job["runs-on"]
        if "${{" not in where:
            assert where in GITHUBS
            continue
        for row in job["strategy"]["matrix"]["include"]:
            assert row["own"].startswith("${{ vars.") and row["githubs"] in GITHUBS
            ours, theirs = (row | {"target": "cuda13", "own": own} for own in ("large", ""))
            assert asked(where, github={"event_name": "pull_request"}, matrix=ours) == row["githubs"]
            assert asked(where, github={"event_name": "push"}, matrix=ours) == "large"
            assert asked(where, github={"event_name": "push"}, matrix=theirs) == row["githubs"]


@pytest.mark.parametrize("name", TREES)
def test_values_of_others_do_not_become_shell_text(name: str):
    """GitHub puts nothing into a script: what it knows comes as variables."""
    for step in steps(name):
        assert "${{" not in step.get("run", "")


def test_python_is_the_stack_s():
    steps_of_action = yaml.safe_load((ROOT / ".github/actions/environment/action.yml").read_text())["runs"]["steps"]
    versions = [step["with"]["python-version"] for step in steps_of_action if "setup-python" in step.get("uses", "")]
    assert versions == [pins("cpu").python]


def test_groups_are_all_folders_of_tests_but_those_for_accelerators_and_each_has_a_job():
    groups = json.loads(subprocess.check_output([ROOT / "run.sh", "test", "--list"], text=True))
    folders = {file.parent.relative_to(ROOT / "tests").parts[0] for file in ROOT.glob("tests/**/test_*.py")}
    assert {"npu" if name.startswith("npu_host") else name for name in folders} - {"gpu"} == set(groups)
    (matrix,) = [job["strategy"]["matrix"] for job in jobs("nightly") if "group" in str(job.get("strategy"))]
    assert matrix["group"] == "${{ fromJSON(needs.groups.outputs.names) }}"


def test_one_check_says_that_all_jobs_have_passed():
    ci = TREES["ci"]["jobs"]
    passed = ci["passed"]
    assert set(passed["needs"]) == set(ci) - {"passed"} and passed["if"] == "always()"
    (step,) = passed["steps"]
    assert step["run"].split('"')[-2].split() == ["success"] * len(passed["needs"])


def test_every_image_whose_base_is_pinned_is_built_for_both_processors():
    pinned = [name for name in IMAGES if not arguments(name)["BASE"].endswith(UNKNOWN)]
    built, listed = (TREES["images"]["jobs"][name]["strategy"]["matrix"] for name in ("image", "list"))
    assert (built["target"], built["processor"]) == (pinned, ["amd64", "arm64"])
    assert listed["target"] == pinned
