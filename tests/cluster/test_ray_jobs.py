"""Runs on a Ray cluster that was there before, in token mode, submitted from a fourth host that is only a client."""

import json
import re
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.host import PROJECT, PYTHON, Host, Nic
from cluster.keys import Keys
from cluster.launches import LONG
from cluster.leftovers import SETTLE_SECONDS
from cluster.running import Running
from cluster.switch import Switch

HERE = Path(__file__).parent
HEAD, DASHBOARD = "10.77.0.11", "http://10.77.0.11:8265"
TOKEN = {"RAY_AUTH_TOKEN": "a token of thirty-two letters ..".replace(" ", "-")}
RAY = [str(Path(sys.prefix) / "bin" / "ray"), "start", "--num-cpus=8", "--num-gpus=1", "--block"]
SMALL = ["--object-store-memory=100000000", "--disable-usage-stats"]
FORM_SECONDS, RUN_SECONDS, END_SECONDS = 120, 120, 60
HYDRA = ["a=[1,2]", "+b='x y'", 'c="q"', "d=${trainer.n}", "e={k: v}", "f=$(echo no)", "g=*", "h=a;b", "i=\\n"]


class There:
    """The cluster node1, node2, node3, and a laptop."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.switch = folder, Switch()
        keys = Keys(folder / "keys")
        names = ("node1", "node2", "node3", "laptop")
        self.hosts = [
            Host(name, Nic("eth0", (f"10.77.0.1{number}/24",)), self.switch, keys, folder)
            for number, name in enumerate(names, start=1)
        ]
        *self.nodes, self.laptop = self.hosts
        environment = {**TOKEN, "RAY_AUTH_MODE": "token", "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
        rays = []
        for host in self.nodes:
            hide_ours(host)
            role = ["--head", f"--dashboard-host={HEAD}"] if host.address == HEAD else [f"--address={HEAD}:6379"]
            rays.append(host.begin([*RAY, *SMALL, *role, f"--node-ip-address={host.address}"], **environment))
            rays[0].wait_for("Ray runtime started", FORM_SECONDS)
        for ray in rays:
            ray.wait_for("Ray runtime started", FORM_SECONDS)
        self.stay = folder / "STAY"

    def run(self, *words: str, restarts: int = 0) -> Running:
        """`train --ray` of the job on_ray.py from the laptop."""
        job = [PYTHON, HERE / "ray_job.py", DASHBOARD, HERE / "jobs" / "on_ray.py", self.folder, str(restarts), *words]
        return self.laptop.begin(job, self.folder, PYTHONPATH=str(PROJECT), NCCL_DEBUG="INFO", **TOKEN)

    def launch(self, *words: str | Path, **environment: str) -> Running:
        return self.laptop.begin([PYTHON, "-m", "launch", *words], self.folder, PYTHONPATH=str(PROJECT), **environment)

    def of_job(self) -> list[str]:
        """The job's processes that live: its driver, and the children of its actors."""
        return [*self.running("job.py"), *self.running("98765")]

    def left(self) -> list[str]:
        """Those that do not end; Ray calls an actor dead a moment before it has ended the actor's children."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while (alive := self.of_job()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return alive

    def running(self, word: str) -> list[str]:
        """The command lines with this word on the cluster's nodes."""
        lines = [" ".join(words) for host in self.nodes if host.is_on for words in host.commands().values()]
        return [line for line in lines if word in line]

    def close(self) -> None:
        for host in self.hosts:
            host.close()
        self.switch.close()


def hide_ours(host: Host) -> None:
    """Ray's Python on a node has not this project."""
    site = Path(sysconfig.get_path("purelib"))
    for file in site.glob("__editable__.ascend_quant*.pth"):
        host.run(["mount", "--bind", "/dev/null", str(file)])
    for folder in [*site.glob("ascend_quant*"), *site.glob("ascend_quant")]:
        host.run(["mount", "-t", "tmpfs", "none", str(folder)])


@pytest.fixture(scope="module")
def cluster(namespaces, tmp_path_factory) -> Iterator[There]:
    made = There(tmp_path_factory.mktemp("ray"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def there(cluster: There) -> Iterator[There]:
    """The cluster, and the file for which jobs stay; a test leaves nothing of its jobs."""
    cluster.stay.touch()
    yield cluster
    cluster.stay.unlink(missing_ok=True)
    assert cluster.left() == []


def says(run: Running, seconds: float = RUN_SECONDS, after: int = 0) -> dict:
    return json.loads(run.wait_for(r"^SAYS (.*)$", seconds, after)[1])


def test_words_variables_and_sources_arrive_and_a_failure_has_its_cause(there: There):
    run = there.run(*HYDRA, "fail")
    told = says(run)
    assert told["words"] == [*HYDRA, "fail"]
    assert {(name, debug) for name, debug, _ in told["workers"]} == {(f"node{n}", "INFO") for n in (1, 2, 3)}
    assert all("working_dir" in file for _, _, file in told["workers"])
    assert run.wait(END_SECONDS) == 1, run.text
    assert re.search(r"^cause: LookupError: ", run.text, flags=re.MULTILINE), run.text


def test_a_killed_driver_is_run_again_from_its_last_checkpoint(there: There):
    run = there.run(restarts=1)
    first = says(run)
    before = len(run.text)
    driver = next(one for one, words in there.nodes[0].commands().items() if "job.py" in " ".join(words[1:2]))
    driver.kill()
    second = says(run, after=before)
    assert first["words"] == second["words"] == ["trainer.resume_mode=auto"]
    assert second["metrics"] == f"{first['metrics']}-restart1"
    assert sum("98765" in line for line in there.of_job()) == len([*there.nodes, "detached"])  # of this attempt alone
    there.stay.unlink()
    assert run.wait(END_SECONDS) == 0, run.text


def stop(there: There, run: Running) -> None:
    name = re.search(r"^run (\S+);", run.text, flags=re.MULTILINE)[1]
    assert there.launch("stop", name, **TOKEN).wait(END_SECONDS) == 0


def press_ctrl_c(_: There, run: Running) -> None:
    run.press_ctrl_c()


@pytest.mark.parametrize("end", [stop, pytest.param(press_ctrl_c, marks=LONG)], ids=lambda end: end.__name__)
def test_this_run_ends_and_no_other_job(there: There, end):
    other = [RAY[0], "job", "submit", "--address", DASHBOARD, "--no-wait", "--", "sleep", "4321"]
    there.laptop.run(other, RAY_AUTH_MODE="token", **TOKEN)
    run = there.run()
    says(run)
    end(there, run)
    assert run.wait(END_SECONDS) == 130, run.text
    assert there.left() == []
    assert there.running("4321")


@pytest.mark.parametrize("environment", [{}, {"RAY_AUTH_TOKEN": "x" * 32}], ids=["no_token", "a_wrong_token"])
def test_nothing_starts_without_the_token(there: There, environment):
    options = ["--ray", DASHBOARD, "--data", there.folder, "--out", there.folder]
    run = there.launch("train", "addition-int8", *options, **environment)
    assert run.wait(END_SECONDS) == 2, run.text
    assert DASHBOARD in run.text


# The checks of the long one also run at the start of every `train --ray`.
ALL = pytest.param("3", "10.77.0.11, 10.77.0.12, 10.77.0.13", marks=LONG)


@pytest.mark.parametrize(("nodes", "named"), [ALL, ("4", "10.77.0.13 1")])
def test_doctor_looks_at_every_node_of_the_run(there: There, nodes: str, named: str):
    paths = ["--data", "/nowhere", "--out", there.folder]
    options = ["--recipe", "addition-int8", "--set", f"trainer.nnodes={nodes}", *paths]
    run = there.launch("doctor", "--ray", DASHBOARD, *options, **TOKEN)
    assert run.wait(RUN_SECONDS) == 1, run.text
    problem = "run.inputs" if nodes == "3" else "devices.present"
    assert re.search(rf"^error {problem}\b.*{re.escape(named)}\b", run.text, flags=re.MULTILINE), run.text


def test_a_dead_head_ends_the_run(cluster: There):
    """The last test: Ray's workers on the other nodes end a minute after their head, as Ray finds out."""
    cluster.stay.touch()
    run = cluster.run()
    says(run)
    cluster.nodes[0].kill()
    assert run.wait(END_SECONDS) == 1, run.text
    assert re.search(rf"^where: {DASHBOARD}$", run.text, flags=re.MULTILINE), run.text
