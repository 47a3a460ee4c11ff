"""`./run.sh test`: one run of pytest for each group, whatever came of the others. With a stand-in for pytest."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from naming import has_line_naming

RUN_SH = Path(__file__).parents[2] / "run.sh"
OTHER_VERSION = "npu_host -m each_version"  # a second run in that folder, of another environment
FIRST, BESIDE = ("unit", "engine"), ("images", "npu_host", OTHER_VERSION, "npu_host_0_10")
AT_ONCE = ["-n", "auto", "--dist", "loadfile"]
GIT = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]
PYTEST = """#!/bin/bash
if [[ $1 == -c && $2 == *cuda* ]]; then exit "${no_gpu:-0}"; fi
if [[ $1 == -c ]]; then echo "${lacking:-}"; exit; fi
echo "$@" >>"$CALLS"
echo "${SHORT_SINCE-whole}" >>"$CALLS.since"
name=${3#tests/}
code=${name//-/_}_code
if [[ ${!code:-} == waits ]]; then trap 'exit 2' INT; echo waiting; while :; do sleep 0.1; done; fi
exit "${!code:-0}"
"""


class Checkout:
    """A copy of run.sh whose environments are there and whose pytest ends as it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls, self.python = folder, folder / "calls", folder / "venv" / "bin" / "python"
        self.since = folder / "calls.since"
        shutil.copy(RUN_SH, folder)
        self.executable("docker/locks/install.sh", "#!/bin/sh\n")
        for venv in ("venv", "venv-npu", "venv-npu-0.30", "venv-npu-2.7"):
            self.executable(f"{venv}/bin/python", PYTEST)
        for name in {*FIRST, *BESIDE, "cluster", "gpu"} - {OTHER_VERSION}:
            (folder / "tests" / name).mkdir(parents=True)
            (folder / "tests" / name / "test_x.py").touch()

    def executable(self, name: str, text: str) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
        file.chmod(0o755)

    def start(self, *arguments: str, **codes: object) -> subprocess.Popen:
        """`./run.sh test ARGUMENTS`, in which pytest ends with unit_code=.. in tests/unit, and so on; else with 0."""
        self.calls.write_text("")
        self.since.unlink(missing_ok=True)
        outside = {name: value for name, value in os.environ.items() if name != "SHORT_SINCE"}  # of this very check
        variables = {"VENV": str(self.folder / "venv"), "CALLS": str(self.calls), "PYTHON": str(self.python)}
        return subprocess.Popen(
            [self.folder / "run.sh", "test", *arguments],
            env=outside | variables | {name: str(code) for name, code in codes.items()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's & has it ignored
        )

    def code(self, *arguments: str, **codes: object) -> int:
        with self.start(*arguments, **codes) as run:
            self.out, self.said = run.communicate(timeout=60)
        return run.returncode

    def called(self) -> dict[str, list[str]]:
        """The arguments of each run of pytest, by folder, and what a second run in one begins with."""
        lines = [line.split() for line in self.calls.read_text().splitlines()]
        assert all(words[:2] == ["-m", "pytest"] for words in lines)
        found = {}
        for folder, *rest in (words[2:] for words in lines):
            folder, again = folder.removeprefix("tests/"), OTHER_VERSION.split()[1:]
            named = " ".join((folder, *again)) if folder == "npu_host" and rest[:2] == again else folder
            found[named] = rest[2:] if named != folder else rest
        return found

    def git(self, *arguments: str) -> str:
        return subprocess.check_output([*GIT, *arguments], cwd=self.folder, text=True).strip()

    def must_have_run_all(self) -> None:
        """Each once, one after the other; those of images and npu beside cluster."""
        called = tuple(self.called())
        assert called[:2] == FIRST and sorted(called) == sorted((*FIRST, *BESIDE, "cluster"))
        assert tuple(name for name in called if name in BESIDE) == BESIDE


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_two_files_at_once_where_tests_do_not_touch_the_machine(checkout: Checkout):
    assert checkout.code("all", "--", "--durations=9") == 0
    found = checkout.called()
    checkout.must_have_run_all()
    for name, words in found.items():
        assert words[-1] == "--durations=9"  # after ours: -n 0 has the last word
        assert words[:4] == AT_ONCE if name in ("unit", "engine") else words == ["--durations=9"]


def test_the_list_of_groups_is_what_all_runs(checkout: Checkout):
    with checkout.start("--list") as run:
        listed = json.loads(run.communicate(timeout=60)[0])
    assert run.returncode == 0 and checkout.called() == {}
    assert checkout.code("all") == 0
    checkout.must_have_run_all()
    assert sorted(listed) == sorted([*FIRST, "cluster", "images", "npu"])
    assert checkout.code("--list", "unit") == 2 and "unit" in checkout.said


def test_a_failed_group_does_not_keep_the_others_from_running(checkout: Checkout):
    assert checkout.code("all", unit_code=1, cluster_code=3) == 3
    checkout.must_have_run_all()
    failed = [line for line in checkout.said.splitlines() if "FAILED" in line]
    assert failed == [
        "run.sh: tests/unit: FAILED, pytest ended with 1",
        "run.sh: tests/cluster: FAILED, pytest ended with 3",
    ]


def test_a_short_check_knows_what_has_changed(checkout: Checkout):
    """Without a group: all groups, told since when; the NPU's other versions only where their subject has changed."""
    assert checkout.code() == 0
    assert set(checkout.called()) == {*FIRST, "images", "npu_host", "cluster"}
    assert set(checkout.since.read_text().splitlines()) == {""}  # no git here: nothing is known
    checkout.git("init", "-q", "-b", "main")
    checkout.git("add", "tests")
    checkout.git("commit", "-qm", "one")
    (checkout.folder / "tests/unit/test_x.py").write_text("# changed")
    checkout.git("commit", "-qam", "two")
    one = checkout.git("rev-parse", "HEAD~1")
    assert checkout.code("--", "-k", "x") == 0 and "npu_host_0_10" not in checkout.called()
    assert set(checkout.since.read_text().splitlines()) == {one}
    (checkout.folder / "tests/npu_host/test_x.py").write_text("# not even committed")
    assert checkout.code() == 0
    checkout.must_have_run_all()
    assert checkout.code("all") == 0 and set(checkout.since.read_text().splitlines()) == {"whole"}


@pytest.mark.parametrize(
    ("arguments", "unit", "engine", "expected"),
    [
        (("--", "-k", "x"), 5, 0, 0),  # a filter that leaves tests in one group only
        (("--", "-k", "x"), 5, 1, 1),
        (("--", "-k", "x"), 5, 5, 5),
        ((), 5, 0, 5),  # tests that should be there
    ],
)
def test_a_run_without_a_test(checkout: Checkout, arguments: tuple[str, ...], unit: int, engine: int, expected: int):
    assert checkout.code("unit", "engine", *arguments, unit_code=unit, engine_code=engine) == expected
    assert has_line_naming(checkout.said, "tests/unit:", "no test")


def test_after_ctrl_c_no_other_group_begins(checkout: Checkout):
    with checkout.start("unit", "engine", unit_code="waits") as run:
        assert run.stdout.readline() == "waiting\n"
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(60) == 130
    assert tuple(checkout.called()) == ("unit",)


def test_images_and_npu_beside_cluster(checkout: Checkout):
    """Their results are told after its own, whichever ends first, and a filter may leave none of theirs."""
    assert checkout.code("cluster", "npu", npu_host_0_10_code=1, cluster_code=0) == 1
    lines = [line for line in checkout.said.splitlines() if line.startswith("run.sh: tests")]
    assert "run.sh: tests/npu_host_0_10: FAILED, pytest ended with 1" in checkout.out
    cluster, npu = lines
    assert has_line_naming(cluster, "tests/cluster: passed") and has_line_naming(npu, "npu", "with 1")
    none = {"npu_host_code": 5, "npu_host_0_10_code": 5}
    assert checkout.code("cluster", "npu", **none) == 5
    assert checkout.code("cluster", "npu", "--", "-k", "x", **none) == 0
    assert checkout.called()["npu_host"] == checkout.called()[OTHER_VERSION] == ["-k", "x"]
    assert checkout.code("images", "cluster", images_code=3) == 3
    assert has_line_naming(checkout.said, "tests of images", "with 3") and set(checkout.called()) == {
        "images",
        "cluster",
    }
    assert checkout.code("images", "npu") == 0 and tuple(checkout.called()) == BESIDE


def test_gpu_is_a_group_of_its_own(checkout: Checkout):
    assert checkout.code("gpu", "--", "-k", "x") == 0
    assert checkout.called() == {"gpu": ["-m", "gpu", "-k", "x"], "unit": ["-m", "gpu", "-k", "x"]}
    assert checkout.code("gpu", gpu_code=1) == 1 and checkout.code("gpu", unit_code=5) == 5
    assert checkout.code("gpu", "unit") == 2 and checkout.code("unit", "gpu") == 2
    assert checkout.code("gpu", no_gpu=1) == 2 and "no GPU" in checkout.said
    assert checkout.code("gpu", lacking="pytest_timeout hypothesis") == 2
    assert "-m pip install pytest-timeout hypothesis" in checkout.said and checkout.called() == {}


def test_gpu_tests_need_an_interpreter_and_a_checkout(checkout: Checkout):
    checkout.python = ""
    assert checkout.code("gpu") == 2 and "PYTHON" in checkout.said
    checkout.python = checkout.folder / "nowhere"
    assert checkout.code("gpu") == 2 and "nowhere" in checkout.said
    checkout.python = checkout.folder / "venv" / "bin" / "python"
    shutil.rmtree(checkout.folder / "tests" / "gpu")
    assert checkout.code("gpu") == 2 and "docker run --gpus all" in checkout.said
    assert checkout.called() == {}
