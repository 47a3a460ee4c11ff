"""`train --ray` without a cluster: addresses, tokens, variables, the working directory, and what stops a run."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest
from naming import has_line_naming

import ascend_quant
from launch import LaunchError
from launch.doctor.checking import Finding, HostReport, Report
from launch.plan import dry_run
from launch.ray_jobs import nodes, run, sources
from launch.ray_jobs.cluster import RUN, Cluster, connect, url
from launch.ray_jobs.nodes import lines_of
from launch.ray_jobs.plan import RayPlan, make, places
from launch.recipes import Paths, load

TOKEN = "a-token-of-thirty-two-characters"
PATHS = Paths("/model", "/data", "/out")
OURS = ("ascend_quant", "launch")


@pytest.fixture
def dashboard() -> Iterator[str]:
    """A server that asks for the token, as Ray's dashboard does, and reports Ray 2.1.0."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("Authorization")
            code = 401 if given is None else 200 if given == f"Bearer {TOKEN}" else 403
            code = 404 if "elsewhere" in self.path else code
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps({"ray_version": "2.1.0"}).encode() if code == 200 else b"no")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("where", ["variable", "named_file", "home"])
def test_the_token_comes_from_where_ray_reads_it(dashboard: str, tmp_path: Path, monkeypatch, where: str):
    named, at_home = tmp_path / "named", tmp_path / ".ray" / "auth_token"
    at_home.parent.mkdir()
    named.write_text(f"{TOKEN}\n" if where == "named_file" else "another")
    at_home.write_text(f"{TOKEN}\n" if where == "home" else "another")
    environment = {
        "variable": {"RAY_AUTH_TOKEN": TOKEN, "RAY_AUTH_TOKEN_PATH": str(named)},
        "named_file": {"RAY_AUTH_TOKEN_PATH": str(named)},
        "home": {},
    }[where]
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")  # the shell's own Ray is another one
    monkeypatch.setenv("HOME", str(tmp_path))
    cluster = connect(dashboard, environment)
    assert (cluster.version, cluster.get("/api/version")["ray_version"]) == ("2.1.0", "2.1.0")
    assert cluster.client.get_address() == dashboard


@pytest.mark.parametrize(
    "environment", [{"RAY_AUTH_TOKEN_PATH": "/nowhere"}, {"RAY_AUTH_TOKEN": "another"}], ids=["none", "wrong"]
)
def test_no_token_and_a_wrong_one_are_errors(dashboard: str, environment: dict[str, str]):
    with pytest.raises(LaunchError, match=dashboard):
        connect(dashboard, environment)


def test_what_is_not_ray_s_dashboard_is_an_error(dashboard: str):
    host, port = dashboard.removeprefix("http://").split(":")
    for nobody in (f"{host}:{int(port) + 1}", f"{dashboard}/elsewhere"):
        with pytest.raises(LaunchError, match=nobody):
            connect(nobody, {"RAY_AUTH_TOKEN": TOKEN})


def test_an_address_is_a_dashboard_s_without_a_login():
    assert url("head:8265") == url("http://head:8265/") == "http://head:8265"
    for wrong in ("ray://head:10001", "http://", "http://user:secret@head:8265"):
        with pytest.raises(LaunchError) as raised:
            url(wrong)
        assert "secret" not in str(raised.value)


def plan(changes: Sequence[str] = (), shell: dict[str, str] | None = None, restarts: int = 0) -> RayPlan:
    recipe = load("qwen2.5-7b-int8-gsm8k-h100", changes)
    return make(recipe, PATHS, "run", shell=shell or {}, restarts=restarts)


def test_variables_that_name_a_host_or_tie_to_another_ray_are_left_to_the_cluster():
    shell = {"NCCL_SOCKET_IFNAME": "eth7", "RAY_ADDRESS": "there:1", "NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "3"}
    made = plan(["recipe.environment.GLOO_SOCKET_IFNAME='eth0'"], shell)
    found = made.job.environment
    assert (found["NCCL_DEBUG"], found["GLOO_SOCKET_IFNAME"], found["HYDRA_FULL_ERROR"]) == ("INFO", "eth0", "1")
    assert not found.keys() & {
        "NCCL_SOCKET_IFNAME",
        "RAY_ADDRESS",
        "CUDA_VISIBLE_DEVICES",
        "RAY_health_check_period_ms",
    }
    assert any("NCCL_SOCKET_IFNAME" in note for note in made.notes)


def test_a_secret_is_a_variable_of_the_job_and_nothing_else():
    made = plan(shell={"WANDB_API_KEY": "hush-hush", "WANDB_PROJECT": "one"})
    assert made.job.environment["WANDB_API_KEY"] == "hush-hush"
    assert made.wanted.environment["WANDB_PROJECT"] == "one"
    assert "hush" not in f"{made.wanted}{made.job.entrypoint}{made.notes}{dry_run.job(made.job)}"  # some are arguments


def test_a_value_that_ray_would_expand_is_refused():
    assert plan(["recipe.environment.NCCL_DEBUG_FILE='/tmp/a$-b'"]).job.environment["NCCL_DEBUG_FILE"] == "/tmp/a$-b"
    for value in ("$HOME/x", "${HOME}", "a$1"):
        with pytest.raises(LaunchError, match="NCCL_DEBUG_FILE"):
            plan({"environment.NCCL_DEBUG_FILE": value})


def test_a_variable_stands_once_and_a_restart_resumes():
    fp8 = make(load("qwen3-30b-a3b-fp8"), PATHS, "run", shell={}, restarts=1)
    name = "NVTE_FP8_BLOCK_SCALING_FP32_SCALES"  # Ray refuses one that verl's ray.init names, too
    assert fp8.job.environment[name] == "1"
    assert not any(name in word for word in fp8.job.entrypoint)
    assert fp8.job.entrypoint[-1] == "trainer.resume_mode=auto"


def test_paths_without_a_default_are_named():
    for recipe, given, missing in (
        ("qwen3-4b-fp8", {"out": "/out"}, "--data"),
        ("qwen3-4b-fp8", {"data": "/d"}, "--out"),
    ):
        with pytest.raises(LaunchError, match=missing):
            places(load(recipe), None, **{"data": None, "out": None} | given)


def test_the_working_directory_stands_for_an_installation(tmp_path: Path):
    sources.fill(tmp_path, {"reward/own.py": "x = 1"})
    told = """
import importlib.metadata, importlib.util, json, launch.recipes.stacks, reward.own
names = sorted(importlib.metadata.entry_points(group="vllm.general_plugins").names)
files = [importlib.util.find_spec("ascend_quant").origin, launch.__file__]
print(json.dumps([*files, sorted(launch.recipes.stacks.all_pins()), names]))
"""
    own = {"PYTHONPATH": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", told], env=own, cwd="/", capture_output=True, text=True, check=True)
    stacks = ["ascend-cann8.5", "ascend-cann9.1", "cpu", "cuda13"]
    names = sorted(entry_points(group="vllm.general_plugins").names)
    assert json.loads(said.stdout) == [*(f"{tmp_path}/{name}/__init__.py" for name in OURS), stacks, names]
    package = Path(ascend_quant.__file__).parent
    for file in package.rglob("*.[jpt][os]*"):  # json, toml
        assert (tmp_path / "ascend_quant" / file.relative_to(package)).read_bytes() == file.read_bytes()


def test_what_stops_a_run_is_told_with_its_nodes_and_all_else_is_a_note():
    missing = Finding("error", "run.inputs", "/data/train.parquet does not exist", "make it")
    older = Finding("error", "versions.packages", "verl 0.9.0; 0.9.1 is pinned", "install it")
    full = Finding("warning", "machine.tmp", "4 GiB free", "free some")
    skew = Finding("error", "hosts.traits", "torch: 2.1 on a; 2.2 on b", "use the same image")
    well = Finding("ok", "machine.shm", "all free")
    hosts = [HostReport("a", [missing, older, well]), HostReport("b", [missing, full])]
    stopping, notes = ("\n".join(lines) for lines in lines_of(Report(hosts, [skew])))
    assert stopping.count("\n") == notes.count("\n") == 1
    assert has_line_naming(stopping, "a, b", missing.what, missing.fix) and has_line_naming(stopping, skew.what)
    assert has_line_naming(notes, "a", older.what) and has_line_naming(notes, "b", full.what)


def test_stop_ends_the_actors_of_jobs_that_have_ended_already(monkeypatch):
    jobs = [
        {"submission_id": name, "status": status, "metadata": metadata}
        for name, status, metadata in (
            ("a", "FAILED", {RUN: "run"}),
            ("b", "RUNNING", {RUN: "run"}),
            ("c", "FAILED", {RUN: "another"}),
            (None, "SUCCEEDED", None),
        )
    ]
    stopped, ended = [], []
    monkeypatch.setattr(Cluster, "get", lambda *_: jobs)
    monkeypatch.setattr(Cluster, "stop", lambda _, submission: stopped.append(submission))
    monkeypatch.setattr(Cluster, "end_actors", lambda _, job: ended.append(job["submission_id"]))
    assert Cluster.__new__(Cluster).stop_run("run") == stopped == ["b"]
    assert ended == ["a"]


def test_a_restart_stops_what_an_earlier_attempt_has_left(monkeypatch):
    monkeypatch.setattr(nodes, "examine", lambda *_: Report([], []))
    for number, stopped in ((0, []), (1, ["run"])):
        found = []
        cluster, desk = SimpleNamespace(stop_run=found.append), SimpleNamespace(interrupt=SimpleNamespace(count=0))
        assert run.check(plan(), cluster, desk, f"run-{number + 1}", number) == ([], [])
        assert found == stopped


def test_a_job_that_has_succeeded_is_no_failure_if_its_actors_cannot_be_listed():
    async def no_lines(_: str):
        for line in ():
            yield line

    def end_actors(_: dict) -> None:
        raise ConnectionError

    job, said = {"status": "SUCCEEDED"}, []
    client = SimpleNamespace(tail_job_logs=no_lines)
    cluster = SimpleNamespace(job=lambda _: job, client=client, end_actors=end_actors)
    status = SimpleNamespace(change=lambda **_: None, say=said.append)
    record = SimpleNamespace(run="run")
    desk = SimpleNamespace(status=status, interrupt=SimpleNamespace(count=0), record=record)
    assert run.follow(cluster, "run-1", desk) is job
    assert has_line_naming("\n".join(said), "run")


def test_checks_that_are_given_up_are_stopped(monkeypatch):
    def wait(*_: object) -> None:
        raise LaunchError("still RUNNING")

    monkeypatch.setattr(sources, "fill", lambda *_: None)
    stopped = []
    cluster = SimpleNamespace(submit=lambda *_, **__: None, wait=wait, ask_to_stop=stopped.append)
    with pytest.raises(LaunchError):
        nodes.ask(cluster, plan(), "run-1-nodes-1", {}, lambda: True)
    assert stopped == ["run-1-nodes-1"]
