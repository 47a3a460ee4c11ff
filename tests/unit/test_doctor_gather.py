"""What the doctor gathers of the real machine, beside what another program or the test itself knows."""

import json
import mmap
import os
import shutil
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest
from naming import has_line_naming

from launch.doctor import HostReport, Report, examination
from launch.doctor.checks.leftovers import is_engine_or_trainer, is_ray, leftovers
from launch.doctor.checks.links import rdma_of_host
from launch.doctor.checks.network import network, open_ports, ranges, reach
from launch.doctor.checks.paths import paths
from launch.doctor.checks.ray import ray_nodes
from launch.doctor.checks.system import clock_is_synchronized, huge_pages, limits, system
from launch.doctor.checks.versions import installed_packages, software
from launch.doctor.examination import examine_here, gathered
from launch.doctor.facts import Kernels, Package
from launch.doctor.requirements import Wanted
from launch.processes import still_running
from launch.programs import ask


def test_a_port_that_is_taken_and_by_whom():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (found,) = [listener for listener in network(Wanted()).listeners if listener.port == port]
        assert (found.pid, found.address) == (os.getpid(), "127.0.0.1")
        own = Path("/proc/self/cmdline").read_text().replace("\0", " ").split()  # xdist's workers change theirs
        assert found.process == " ".join(own)[:120]
    assert port not in {listener.port for listener in network(Wanted()).listeners}


def test_the_kernel_s_ports_and_the_wire():
    found = network(Wanted(address="127.0.0.1"))
    said = subprocess.run(["sysctl", "-n", "net.ipv4.ip_local_port_range"], capture_output=True, text=True, check=True)
    assert list(found.ephemeral) == [int(word) for word in said.stdout.split()]
    assert (found.wire, found.problem) == (("lo", "127.0.0.1"), None)
    elsewhere = network(Wanted(address="192.0.2.250"))  # of the range for documents: nobody's
    assert elsewhere.wire is None and "192.0.2.250" in elsewhere.problem


def test_ranges_of_ports():
    assert ranges("60000,60050-60100") == [(60000, 60000), (60050, 60100)]
    assert ranges("") == ranges("auto") == []


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_reaching_a_port(address: str):
    listening, *others = open_ports(address, [0])
    port = listening.getsockname()[1]
    with listening:
        assert (others, reach(address, port, 5)) == ([], None)
        assert open_ports(address, [port]) == []  # taken
    assert reach(address, port, 5) == "Connection refused"


def test_limits_are_those_of_the_shell():
    script = "import json; from launch.doctor.checks.system import *; print(json.dumps(limits(resource.RLIMIT_NOFILE)))"
    shell = f"ulimit -Sn 500; ulimit -Hn 600; exec {sys.executable} -c '{script}'"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [500, 600]


def test_sizes_are_those_of_df_and_free(tmp_path: Path):
    missing = str(tmp_path / "not" / "there")
    found = system([missing])
    said = subprocess.run(["df", "-B1", "--output=size", "/dev/shm"], capture_output=True, text=True, check=True)
    assert found.shared_memory[0] == int(said.stdout.split()[1])
    assert found.disks[missing] == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.2)
    total = int(subprocess.run(["free", "-b"], capture_output=True, text=True, check=True).stdout.split()[7])
    assert found.memory[0] <= total and found.memory[1] <= found.memory[0]


def test_a_container_s_memory_is_its_own_limit(tmp_path: Path):
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("1073741824\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(
        "HugePages_Total:      10\nHugePages_Free:        4\nHugepagesize:  2048 kB\n"
    )
    found = system([], tmp_path)
    assert found.memory[0] == 1 << 30 and found.memory[1] <= 1 << 30
    assert found.huge_pages == (10 << 21, 4 << 21)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert system([], tmp_path).memory[0] > 1 << 30


def test_the_clock_can_be_asked():
    assert clock_is_synchronized() in (True, False)
    assert huge_pages("MemTotal: 5 kB\n") == (0, 0)
    assert all(limit is None or limit > 0 for limit in limits(7))


def test_a_machine_without_proc_is_a_finding(tmp_path: Path, monkeypatch):
    """As where /proc is hidden: psutil reads it there, and so do the kernel's settings."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    monkeypatch.setattr(examination.kernels, "kernels", lambda device: Kernels(device, {"int8": "a test"}))
    facts = examination.gather(Wanted())
    assert {"system", "leftovers", "ray"} & set(facts.failed()) and "software" not in facts.failed()
    assert {one.level for one in gathered(facts, Wanted())} == {"error"}
    findings, _ = examine_here(Wanted())
    assert json.loads(Report([HostReport("here", findings)]).as_json())["exit_code"] == 1
    assert not [one for one in findings if "check itself failed" in one.what]


@pytest.mark.parametrize(
    ("script", "seconds", "said"),
    [
        ("sleep 60", 0.2, "did not answer"),
        ("sleep 60 & exit 0", 0.2, "did not answer"),  # what it started holds its output
        ("trap '' TERM; while :; do echo more; sleep 0.01; done", 0.2, "did not answer"),
        ("yes", 60, "printed more than"),
        ("yes >&2", 60, "printed more than"),
    ],
)
def test_a_program_without_an_end_is_ended(tmp_path: Path, script: str, seconds: float, said: str):
    answer = ask(["bash", "-c", f"echo $$ > {tmp_path}/group; {script}"], seconds)
    assert (answer.output, said in answer.problem) == ("", True)
    group = int((tmp_path / "group").read_text())
    started = [one for one in psutil.process_iter() if os.getpgid(one.pid) == group]
    assert not still_running(started, 20)


def test_a_program_that_says_what_is_no_text():
    assert ask(["printf", r"a\377b"]).output == "a\ufffdb"
    assert ask(["bash", "-c", r"printf '\377' >&2; exit 3"]).problem.endswith("ended with 3: \ufffd")


@pytest.fixture
def sleeper(tmp_path: Path):
    """Starts copies of `sleep` under other names; ends them."""
    started = []

    def start(name: str, *arguments: str, title: str | None = None, **environment: str) -> subprocess.Popen:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        program = folder / name
        shutil.copy("/bin/sleep", program)
        process = subprocess.Popen([title or str(program), "600", *arguments], executable=program, env=environment)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_segment_is_left_over_once_nobody_uses_it(tmp_path: Path):
    used, unused, other = (tmp_path / name for name in ("psm_used", "psm_unused", "my_own"))
    for file in (used, unused, other):
        file.write_bytes(bytes(8192))
    with used.open("r+b") as opened, mmap.mmap(opened.fileno(), 8192):
        assert leftovers(tmp_path, tmp_path).segments == ((str(unused), 8192),)
    assert [path for path, _ in leftovers(tmp_path, tmp_path).segments] == [str(unused), str(used)]


def test_a_socket_is_left_over_once_nobody_is_bound_to_it(tmp_path: Path):
    path = tmp_path / "rl-colocate-zmq-0.sock"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        assert leftovers(tmp_path, tmp_path).sockets == ()
    assert leftovers(tmp_path, tmp_path).sockets == (str(path),)


def test_a_session_is_left_over_once_no_process_names_it(tmp_path: Path, sleeper):
    for name in ("ray/session_2026-01-01_1", "aq-0/run/session_2026-01-02_2"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "ray/session_latest").symlink_to(tmp_path / "ray/session_2026-01-01_1")
    old, new = (str(tmp_path / name) for name in ("ray/session_2026-01-01_1", "aq-0/run/session_2026-01-02_2"))
    assert leftovers(tmp_path, tmp_path).sessions == (new, old)
    process = sleeper("sleep2", title=f"--session-dir={new}")
    assert leftovers(tmp_path, tmp_path).sessions == (old,)
    process.kill()
    process.wait()
    assert leftovers(tmp_path, tmp_path).sessions == (new, old)


def test_a_raylet_and_whose_it_is(sleeper):
    """A stand-in with a raylet's name and arguments; real ones are in tests/cluster."""
    stray = sleeper("raylet", title="raylet --gcs-address=192.0.2.9:6379")
    ours = sleeper("raylet", title="raylet --gcs-address=192.0.2.9:6766", ASCEND_QUANT_RUN="r1")
    found = {node.pid: node for node in ray_nodes()}
    assert (found[stray.pid].head, found[stray.pid].run) == ("192.0.2.9:6379", None)
    assert (found[ours.pid].head, found[ours.pid].run) == ("192.0.2.9:6766", "r1")


def test_command_lines_of_ray_and_of_engines():
    assert is_ray(["ray::IDLE"]) and is_ray(["/site-packages/ray/core/src/ray/raylet/raylet", "--x"])
    assert is_engine_or_trainer(["VLLM::EngineCore"]) and is_engine_or_trainer(
        ["python", "-m", "verl.trainer.main_ppo"]
    )
    assert not any(
        is_ray(argv) or is_engine_or_trainer(argv) for argv in ([], ["vim", "main_ppo.py"], ["grep", "raylet"])
    )


def test_packages_are_those_of_pip():
    found = installed_packages()
    assert found["rich"] == Package(version("rich")) and found["ascend-quant"].version == version("ascend-quant")
    listed = subprocess.run([sys.executable, "-m", "pip", "list", "--format=json"], capture_output=True, text=True)
    if listed.returncode == 0:
        for one in json.loads(listed.stdout):
            assert found[one["name"].lower().replace("_", "-").replace(".", "-")].version == one["version"]


def test_commits_and_the_chip_of_the_build(tmp_path: Path, monkeypatch):
    for name, number in (("vllm_ascend", "0.1.dev1+g7e16b4a7c.d20260101"), ("verl", "0.9.2.dev0")):
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    direct = {"url": "https://example.org/verl.git", "vcs_info": {"vcs": "git", "commit_id": "bcb6386"}}
    (tmp_path / "verl-1.dist-info/direct_url.json").write_text(json.dumps(direct))
    (tmp_path / "vllm_ascend").mkdir()
    (tmp_path / "vllm_ascend/_build_info.py").write_text("# Auto-generated file\n__soc_version__ = 'ascend910_9392'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = software({}, tmp_path)
    assert found.packages["vllm-ascend"].commit == "7e16b4a7c" and found.packages["verl"].commit == "bcb6386"
    assert found.chip_of_image == "ascend910_9392"
    assert software({"ASCEND_QUANT_CHIP": "A2"}, tmp_path).chip_of_image == "A2"


def test_paths_of_a_run(tmp_path: Path):
    snapshot = tmp_path / "hub/models--Qwen--Qwen3-4B/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").touch()
    cached = {"HF_HOME": str(tmp_path)}
    (tmp_path / "data.parquet").touch()
    found = paths(
        "Qwen/Qwen3-4B", [str(tmp_path / "data.parquet"), str(tmp_path / "no")], str(tmp_path / "new/out"), cached
    )
    assert [(path.what, path.found, path.hub, path.writable) for path in found] == [
        ("model", True, True, False),
        ("data", True, False, False),
        ("data", False, False, False),
        ("out", False, False, True),
    ]
    assert not paths("Qwen/Qwen3-8B", [], None, cached)[0].found
    for refused in ("x" * 300, f"{'x' * 300}/{'y' * 300}"):  # by the system
        assert not any(one.found for one in paths(refused, [refused], refused, cached))
    assert paths(str(snapshot), [], None, {})[0].found and not paths(str(tmp_path), [], None, {})[0].found


def test_why_a_program_gave_no_answer():
    assert has_line_naming(ask(["sleep", "30"], 0.2).problem, "sleep 30", "0.2 s")
    text, problem = ask(["bash", "-c", "echo half; echo broken >&2; exit 3"])
    assert text == "half\n" and has_line_naming(problem, "bash -c", "with 3: broken")
    assert has_line_naming(ask(["no-such-program"]).problem, "no-such-program", "PATH")


def test_rdma_adapters_their_devices_and_the_library(tmp_path: Path):
    none = rdma_of_host(tmp_path, "libc.so.6")
    assert (none.adapters, none.devices, none.problem) == ((), (), None)
    for path in ("sys/class/infiniband/mlx5_1", "sys/class/infiniband/mlx5_0", "dev/infiniband/uverbs0"):
        (tmp_path / path).mkdir(parents=True)
    found = rdma_of_host(tmp_path, "libno-such-verbs.so.1")
    assert (found.adapters, found.devices) == (("mlx5_0", "mlx5_1"), ("uverbs0",))
    assert "libno-such-verbs.so.1" in found.problem
