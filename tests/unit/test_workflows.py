"""The workflows run what exists: run.sh's verbs with their options, on every target; pinned, and with few rights."""

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_cases import understood

from launch.images.targets import targets
from launch.plan.start import ASCEND_DEVICES, ASCEND_DRIVER, bind, limits
from launch.stacks import pins

ROOT = Path(__file__).parents[2]
TEXTS = {file.stem: file.read_text() for file in sorted((ROOT / ".github/workflows").glob("*.yml"))}
TREES = {name: yaml.safe_load(text) for name, text in TEXTS.items()}
ON = True  # what YAML 1.1 makes of the key `on`
SELF_HOSTED = ("gpu-smoke", "npu-smoke")


def jobs(name: str) -> Iterator[dict[str, Any]]:
    yield from TREES[name]["jobs"].values()


def steps(name: str) -> Iterator[dict[str, Any]]:
    for job in jobs(name):
        yield from job["steps"]


def filled(job: dict[str, Any]) -> Iterator[str]:
    """The shell text of a job, once for each row of its matrix, with the row and the environment in it."""
    matrix = job.get("strategy", {}).get("matrix", {})
    shell = "\n".join(step["run"] for step in job["steps"] if "run" in step)
    for row in itertools.product(*matrix.values()):
        text = shell
        for variable, value in job.get("env", {}).items():
            text = text.replace(f'"${variable}"', value)
        for key, value in zip(matrix, row, strict=True):
            text = text.replace(f"${{{{ matrix.{key} }}}}", value)
        yield text.replace("\\\n", " ")


def shell_of(name: str) -> list[str]:
    """The lines that a workflow's shells run."""
    return [line.strip() for job in jobs(name) for text in filled(job) for line in text.splitlines()]


def calls(name: str) -> list[list[str]]:
    """The words behind each ./run.sh, without redirections."""
    found = [line.removeprefix("./run.sh ") for line in shell_of(name) if line.startswith("./run.sh ")]
    return [shlex.split(line.split(" > ")[0]) for line in found]


def array(name: str) -> list[str]:
    """A list of run.sh's: words, or the keys of [key]=value."""
    words = re.findall(rf"{name}=\(([^)]*)\)", (ROOT / "run.sh").read_text())[0].split()
    return [re.sub(r"\[(\w+)\]=.*", r"\1", word) for word in words]


def test_these_are_the_workflows():
    assert list(TREES) == ["ci", "gpu-smoke", "images", "npu-smoke"]


def test_actions_are_pinned_by_commit_with_their_version_and_alike():
    used = [line.split("uses:")[1].strip() for text in TEXTS.values() for line in text.splitlines() if "uses:" in line]
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", one) for one in used), used
    assert len(set(used)) == len({one.split("@")[0] for one in used})
    assert len(used) == sum("uses" in step for name in TREES for step in steps(name))


@pytest.mark.parametrize("name", TREES)
def test_rights_time_and_company_are_bounded(name: str):
    tree = TREES[name]
    assert tree["permissions"] in ({}, {"contents": "read"}) and "group" in tree["concurrency"]
    for job in jobs(name):
        assert "permissions" not in job and job["timeout-minutes"] <= 240
    for step in steps(name):
        assert "checkout" not in step.get("uses", "") or step["with"]["persist-credentials"] is False


def test_a_secret_is_for_pushes_of_main_alone():
    for name in TREES:
        for step in steps(name):
            assert "secrets." not in str(step) or "github.ref == 'refs/heads/main'" in step["if"]


@pytest.mark.parametrize("name", SELF_HOSTED)
def test_what_a_pull_request_brings_never_runs_on_a_runner_of_ones_own(name: str):
    assert set(TREES[name][ON]) == {"workflow_dispatch", "workflow_run"}
    assert TREES[name][ON]["workflow_run"] == {"workflows": ["images"], "types": ["completed"], "branches": ["main"]}
    assert all("uses" not in step or "upload-artifact" in step["uses"] for step in steps(name))


@pytest.mark.parametrize("name", TREES)
def test_values_of_others_do_not_become_shell_text(name: str):
    """What GitHub puts into a script is the matrix's, which stands in the file; the rest comes as variables."""
    for step in steps(name):
        assert all(one.startswith("matrix.") for one in re.findall(r"\$\{\{ *(\S+)", step.get("run", "")))


@pytest.mark.parametrize("name", TREES)
def test_verbs_and_their_options_are_those_of_run_sh(name: str):
    for verb, *words in calls(name):
        assert verb in array("COMMANDS")
        if verb == "test":
            assert words and set(words) <= set(array("FOLDER"))
        elif verb == "lint":
            assert not words
        else:
            understood([verb, *words])


@pytest.mark.parametrize("name", TREES)
def test_containers_are_given_verbs_and_their_options(name: str):
    for line in shell_of(name):
        if line.startswith("docker run"):
            behind = re.split(r" \S*ascend-quant:\S+ ", line)[1]
            understood(shlex.split(behind.split(" > ")[0]))


def test_every_image_is_built_verified_and_its_tags_are_its_own():
    matrix = TREES["images"]["jobs"]["image"]["strategy"]["matrix"]
    assert matrix == {"target": list(targets())}
    for verb in ("build", "verify", "tag"):
        assert len([words for words in calls("images") if words[:2] == ["images", verb]]) == len(targets())
    assert not [line for line in shell_of("images") if line.startswith(("docker tag", "docker push", "docker build"))]


def test_images_of_devices_are_tried_on_them():
    tried = [line for name in SELF_HOSTED for line in shell_of(name) if line.startswith("docker pull")]
    assert {line.split(":")[-1] for line in tried} == set(targets()) - {"cpu"}


def test_a_smoke_on_npus_has_the_devices_and_the_driver_as_the_launcher_gives_them():
    runs = [line for line in shell_of("npu-smoke") if line.startswith("docker run")]
    wanted = {f"--device={path}" for path in ASCEND_DEVICES} | {bind(f"{path}:{path}:ro") for path in ASCEND_DRIVER}
    assert runs and all(wanted | set(limits("ascend-cann9.1")) <= set(line.split()) for line in runs)
    assert all("$(printf -- ' --device=%s' /dev/davinci[0-9]*)" in line for line in runs)


def test_the_gpu_smoke_has_all_gpus():
    runs = [line for line in shell_of("gpu-smoke") if line.startswith("docker run")]
    assert runs and all(" --gpus all " in line and set(limits("cuda13")) <= set(line.split()) for line in runs)


def test_python_is_the_stack_s_and_the_cache_of_packages_ends_with_the_lock():
    for name in TREES:
        for step in steps(name):
            if "setup-python" in step.get("uses", ""):
                assert step["with"]["cache-dependency-path"] == "docker/locks/cpu.txt"
                assert step["with"]["python-version"] == pins("cpu").python
