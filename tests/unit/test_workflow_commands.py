"""The workflows run what exists: verbs of run.sh with their options, every group of tests, every pinned target."""

import ast
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
    jobs,
    matrix_of,
    shell_of,
    steps,
)

from launch.plan.start import ASCEND_DEVICES, ASCEND_DRIVER, bind, limits

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
            assert words and (words == ["--list"] or set(words) <= set(groups()))
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
    tested = [words for verb, *words in calls("ci") if verb == "test" and words != ["--list"]]
    assert tested == [[group] for group in groups()]
    assert ["lint"] in calls("ci")


def test_groups_are_all_folders_of_tests_but_those_for_accelerators():
    folders = {file.parent.relative_to(ROOT / "tests").parts[0] for file in ROOT.glob("tests/**/test_*.py")}
    assert {"npu" if name.startswith("npu_host") else name for name in folders} - {"gpu"} == set(groups())


RUN_ALL = [".ci/run", "README.md", "README.zh.md"]  # by one word
TABLES = ["CONTRIBUTING.md", "docs/tested.md", "docs/tested.zh.md"]


@pytest.mark.parametrize("name", [*RUN_ALL, *TABLES])
def test_who_runs_all_groups_names_them_all_or_none(name: str):
    """Tables list each group; everyone else says `all`."""
    text = (ROOT / name).read_text()
    assert "./run.sh test all" in text
    rows = {
        cell for line in text.splitlines() if line.startswith("| `") for cell in re.findall(r"^\| `([\w-]+)` ", line)
    }
    assert set(groups()) <= rows or name in RUN_ALL


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
    (given,) = [step["with"] for step in CI["test"]["steps"] if "environment" in step.get("uses", "")]
    hashed = set(ROOT.glob(asked(given["locks"], matrix={"group": group})))
    of_npu = re.findall(r"docker/locks/(npu-\S+)\.txt", RUN_SH.read_text())
    names = of_npu if group == "npu" else ["cpu"]
    wanted = [ROOT / "docker/locks" / f"{name}{end}.txt" for name in names for end in ("", ".sdists")]
    assert len(names) and {file for file in wanted if file.exists()} <= hashed


def test_every_image_whose_base_is_pinned_is_built_for_both_processors_by_the_bake_file():
    pinned = [name for name in IMAGES if not arguments(name)["BASE"].endswith(UNKNOWN)]
    assert matrix_of(TREES["images"]["jobs"]["image"]) == {"target": pinned, "processor": ["amd64", "arm64"]}
    assert matrix_of(TREES["images"]["jobs"]["list"]) == {"target": pinned}
    built = [line for line in shell_of("images") if line.startswith("docker buildx bake ")]
    assert len(built) == 2 * len(pinned) and all("--file docker/docker-bake.hcl" in line for line in built)
    assert not [line for line in shell_of("images") if line.startswith("docker build ")]


def test_images_keep_their_provenance_and_sbom():
    (step,) = [step for step in steps("images") if "containerd-snapshotter" in step.get("run", "")]
    assert step["if"] == "runner.environment == 'github-hosted'"
    assert "BUILDX_NO_DEFAULT_ATTESTATIONS" not in (ROOT / ".github/workflows/images.yml").read_text()


def test_images_of_devices_are_tried_on_them():
    tried = [line for name in ("gpu-smoke", "npu-smoke") for line in shell_of(name) if line.startswith("docker pull")]
    assert {line.split(":")[-1] for line in tried} == set(IMAGES.values()) - {"cpu"}


def test_a_smoke_on_npus_has_the_devices_and_the_driver_as_the_launcher_gives_them():
    runs = [line for line in shell_of("npu-smoke") if line.startswith("docker run")]
    wanted = {f"--device={path}" for path in ASCEND_DEVICES} | {bind(f"{path}:{path}:ro") for path in ASCEND_DRIVER}
    assert runs and all(wanted | set(limits("ascend-cann9.1")) <= set(line.split()) for line in runs)
    assert all("$(printf -- ' --device=%s' /dev/davinci[0-9]*)" in line for line in runs)


def test_the_gpu_smoke_has_all_gpus():
    runs = [line for line in shell_of("gpu-smoke") if line.startswith("docker run")]
    assert runs and all(" --gpus all " in line and set(limits("cuda13")) <= set(line.split()) for line in runs)


def test_variables_of_ours_are_read_somewhere():
    read = {
        node.value
        for folder in ("ascend_quant", "launch", "tests")
        for file in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    given = {key for name in TREES for job in jobs(name) for step in job["steps"] for key in step.get("env", {})}
    assert {key for key in given if key.startswith("ASCEND_QUANT_")} <= read
