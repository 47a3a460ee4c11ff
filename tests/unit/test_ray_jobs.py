"""`train --ray` without a cluster: addresses, tokens, variables, the wheel, and what nodes lack."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from launch import LaunchError
from launch.ray_jobs import nodes, wheel
from launch.ray_jobs.cluster import connect, url
from launch.ray_jobs.plan import RayPlan, make
from launch.recipes import Paths, load
from launch.stacks import pins

TOKEN = "a-token-of-thirty-two-characters"
PATHS = Paths("/model", "/data", "/out")


@pytest.fixture
def dashboard() -> Iterator[str]:
    """What asks for the token, as Ray's dashboard does, and says that its Ray is 2.1.0."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("Authorization")
            code = 401 if given is None else 200 if given == f"Bearer {TOKEN}" else 403
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
def test_the_token_comes_from_where_ray_reads_it(dashboard: str, tmp_path: Path, where: str):
    file = tmp_path / ".ray" / "auth_token"
    file.parent.mkdir()
    file.write_text(f"{TOKEN}\n" if where != "variable" else "another")
    environment = {
        "variable": {"RAY_AUTH_TOKEN": TOKEN, "HOME": str(tmp_path)},
        "named_file": {"RAY_AUTH_TOKEN_PATH": str(file), "HOME": "/nowhere"},
        "home": {"HOME": str(tmp_path)},
    }[where]
    cluster, note = connect(dashboard, "cpu", environment)
    assert cluster.version == "2.1.0"
    assert "2.1.0" in note and pins("cpu").packages["ray"] in note


@pytest.mark.parametrize("environment", [{"HOME": "/nowhere"}, {"RAY_AUTH_TOKEN": "another"}], ids=["none", "wrong"])
def test_no_token_and_a_wrong_one_are_errors(dashboard: str, environment: dict[str, str]):
    with pytest.raises(LaunchError, match=dashboard):
        connect(dashboard, "cpu", environment)


def test_an_address_is_a_dashboard_s_without_a_login():
    assert url("head:8265") == url("http://head:8265/") == "http://head:8265"
    for wrong in ("ray://head:10001", "http://", "http://user:secret@head:8265"):
        with pytest.raises(LaunchError) as raised:
            url(wrong)
        assert "secret" not in str(raised.value)


def plan(changes: dict[str, str] | None = None, shell: dict[str, str] | None = None, restarts: int = 0) -> RayPlan:
    recipe = load("qwen2.5-7b-int8-gsm8k-h100", changes=changes or {})
    return make(recipe, PATHS, "run", [], shell=shell or {}, restarts=restarts)


def test_variables_that_name_a_host_or_tie_to_another_ray_are_left_to_the_cluster():
    shell = {"NCCL_SOCKET_IFNAME": "eth7", "RAY_ADDRESS": "there:1", "NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "3"}
    made = plan({"environment.GLOO_SOCKET_IFNAME": "eth0"}, shell)
    found = made.job.environment
    assert (found["NCCL_DEBUG"], found["GLOO_SOCKET_IFNAME"], found["HYDRA_FULL_ERROR"]) == ("INFO", "eth0", "1")
    assert not found.keys() & {
        "NCCL_SOCKET_IFNAME",
        "RAY_ADDRESS",
        "CUDA_VISIBLE_DEVICES",
        "RAY_health_check_period_ms",
    }
    assert any("NCCL_SOCKET_IFNAME" in note for note in made.notes)


def test_a_value_that_ray_would_expand_is_refused():
    assert plan({"environment.NCCL_DEBUG_FILE": "/tmp/a$-b"}).job.environment["NCCL_DEBUG_FILE"] == "/tmp/a$-b"
    for value in ("$HOME/x", "${HOME}", "a$1"):
        with pytest.raises(LaunchError, match="NCCL_DEBUG_FILE"):
            plan({"environment.NCCL_DEBUG_FILE": value})


def test_a_variable_stands_once_and_a_restart_resumes():
    fp8 = make(load("qwen3-30b-a3b-fp8"), PATHS, "run", [], shell={}, restarts=1)
    name = "NVTE_FP8_BLOCK_SCALING_FP32_SCALES"  # Ray refuses one that verl's ray.init names, too
    assert fp8.job.environment[name] == "1"
    assert not any(name in word for word in fp8.job.entrypoint)
    assert fp8.job.entrypoint[-1] == "trainer.resume_mode=auto"


def test_the_wheel_installs_with_its_entry_points_and_nothing_else(tmp_path: Path):
    made = wheel.write(tmp_path)
    target = tmp_path / "target"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", f"--target={target}", str(made)]
    subprocess.run(pip, check=True, capture_output=True)
    assert sorted(one.name.partition("-")[0] for one in target.iterdir()) == ["ascend_quant", "ascend_quant"]
    package = wheel.own_sources()
    of_package = {
        file.relative_to(package) for file in package.rglob("*.[jtp][soy]*") if "__pycache__" not in file.parts
    }
    assert of_package <= {file.relative_to(target / "ascend_quant") for file in target.rglob("ascend_quant/**/*")}
    asked = "import importlib.metadata as m; print(*sorted(m.entry_points(group='vllm.general_plugins').names))"
    said = subprocess.run(
        [sys.executable, "-c", asked], env={"PYTHONPATH": str(target)}, capture_output=True, text=True
    )
    assert said.stdout.split() == sorted(entry_points(group="vllm.general_plugins").names)


def node(address: str, **changes: object) -> dict:
    packages = {nodes.plain(name): version for name, version in pins("cuda13").packages.items()}
    found = {"address": address, "Python": "3.12.1", "packages": packages, "sources": "x", "missing": [], "absent": []}
    return found | {"writable": True, "resources": {"CPU": 8.0, "GPU": 8.0}} | changes


def test_nodes_are_fit_or_say_what_they_lack():
    made = plan()
    devices = made.recipe.devices_per_node
    fit = node("a", resources={"CPU": 8.0, "GPU": float(devices)})
    head = node("h", resources={}, absent=made.paths, writable=False)  # computes nothing
    assert nodes.problems([fit, head], made) == []
    assert nodes.notes([fit], "cuda13") == []
    worse = {
        "GPU": {"resources": {"CPU": 8.0, "GPU": devices - 1.0}},
        "torch": {"packages": fit["packages"] | {"torch": "1.0"}},
        made.imports[0].module: {"missing": [0]},
        made.paths[0]: {"absent": made.paths[:1]},
        made.out: {"writable": False},
    }
    for word, change in worse.items():
        found = nodes.problems([fit, node("b", **change)] if word == "torch" else [fit | change], made)
        assert len(found) == 1 and word in found[0], (word, found)
    assert any("torch" in line for line in nodes.notes([node("b", **worse["torch"])], "cuda13"))
    assert nodes.lacking_ours([fit]) == ["a"]
