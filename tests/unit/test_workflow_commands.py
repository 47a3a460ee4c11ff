"""The workflows run what exists: verbs of run.sh with their options, every group of tests, every pinned target."""

import re
import shlex

import pytest
import yaml
from bake_file import IMAGES, UNKNOWN, arguments
from command_cases import understood
from workflow_cases import (
    ROOT,
    RUN_SH,
    TREES,
    array,
    asked,
    calls,
    groups,
    matrix_of,
    shell_of,
    steps,
)

PROGRAMS = {
    "docker",
    "echo",
    "jq",
    "mkdir",
    "pipx",
    "python",
    "sed",
    "sudo",
    "test",
}  # of GitHub, and of the runners' owners
WORDS = {"{", "if", "exit", "fi"}  # of the shell's own
CI = TREES["ci"]["jobs"]
ENVIRONMENT = ROOT / ".github/actions/environment/action.yml"


def without_substitutions(line: str) -> str:
    """A line of shell without the variable that it sets."""
    return re.sub(r"^\w+=\$\((.*)\)$", r"\1", line)


@pytest.mark.parametrize("name", TREES)
def test_what_is_run_is_there(name: str):
    for line in map(without_substitutions, shell_of(name)):
        program = shlex.split(line, comments=True)[0]
        if re.fullmatch(r"\w+=\w*", program):
            continue  # it sets a variable, and runs nothing
        assert program in PROGRAMS | WORDS or (ROOT / program).stat().st_mode & 0o100, line


@pytest.mark.parametrize("name", TREES)
def test_verbs_and_their_options_are_those_of_run_sh(name: str):
    for verb, *words in calls(name):
        assert verb in array("COMMANDS")
        if verb == "test":
            assert set(words) <= {"--list", *groups()}
        elif verb == "lint":
            assert not words
        else:
            understood([verb, *words])


@pytest.mark.parametrize("name", TREES)
def test_containers_are_given_verbs_and_their_options(name: str):
    for line in shell_of(name):
        if line.startswith("docker run"):
            behind = re.split(r" \S*ascend-quant:\S+ ", line)[1]
            words = shlex.split(re.split(r" > | \|\| ", behind)[0])
            if words[0] == "test":  # the entrypoint's own
                assert words[1] in RUN_SH.read_text() and (ROOT / "tests" / words[1].replace("-", "_")).is_dir()
            else:
                understood(words)


def test_every_group_that_needs_no_accelerator_has_a_job():
    tested = [words for verb, *words in calls("nightly") if verb == "test" and words != ["--list"]]
    assert tested == [[group] for group in groups()]
    assert {("lint",), ("test",)} <= set(map(tuple, calls("ci")))


def test_groups_are_all_folders_of_tests_but_those_for_accelerators():
    folders = {file.parent.relative_to(ROOT / "tests").parts[0] for file in ROOT.glob("tests/**/test_*.py")}
    assert {"npu" if name.startswith("npu_host") else name for name in folders} - {"gpu"} == set(groups())


def test_one_check_says_that_all_jobs_have_passed():
    passed = CI["passed"]
    assert set(passed["needs"]) == set(CI) - {"passed"} and passed["if"] == "always()"
    (step,) = passed["steps"]
    assert step["run"].split('"')[-2].split() == ["success"] * len(passed["needs"])


@pytest.mark.parametrize("group", groups())
def test_an_environment_is_kept_until_its_locks_change(group: str):
    """Its name among GitHub's caches has the hash of every file that run.sh makes it from."""
    (key,) = [
        step["with"]["key"] for step in yaml.safe_load(ENVIRONMENT.read_text())["runs"]["steps"] if "key" in str(step)
    ]
    assert "hashFiles(inputs.locks, 'docker/locks/install.sh')" in key
    (given,) = [step["with"] for step in steps("nightly") if "environment" in step.get("uses", "")]
    hashed = set(ROOT.glob(asked(given["locks"], matrix={"group": group})))
    names = [file.stem for file in ROOT.glob("docker/locks/npu-*.in")] if group == "npu" else ["cpu"]
    wanted = [ROOT / "docker/locks" / f"{name}{end}.txt" for name in names for end in ("", ".sdists")]
    assert len(names) and {file for file in wanted if file.exists()} <= hashed


def test_every_image_whose_base_is_pinned_is_built_for_both_processors_by_the_bake_file():
    pinned = [name for name in IMAGES if not arguments(name)["BASE"].endswith(UNKNOWN)]
    assert matrix_of(TREES["images"]["jobs"]["image"]) == {"target": pinned, "processor": ["amd64", "arm64"]}
    assert matrix_of(TREES["images"]["jobs"]["list"]) == {"target": pinned}
    built = [line for line in shell_of("images") if line.startswith("docker buildx bake ")]
    assert len(built) == 2 * len(pinned) and all("--file docker/docker-bake.hcl" in line for line in built)
    assert not [line for line in shell_of("images") if line.startswith("docker build ")]
