"""What the doctor gathers of the real machine, beside what another program or the test itself knows."""

import json
import os
import shutil
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from naming import has_line_naming

from launch.doctor import examination, machine
from launch.doctor.examination import in_the_way
from launch.doctor.facts import Wanted
from launch.doctor.network import network
from launch.doctor.run import files
from launch.doctor.versions import patched, software
from launch.system.software import Package, installed_packages


def test_the_run_s_ports_and_the_wire():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        wanted = Wanted(address="127.0.0.1", ports={"ray": port, "dashboard": 1, "workers": "20000-20099"})
        found = network(wanted)
    assert (found.wire, found.problem) == (("lo", "127.0.0.1"), None)
    (line,) = found.taken
    assert has_line_naming(line, f"port {port} (ray)", f"process {os.getpid()}")
    elsewhere = network(Wanted(address="192.0.2.250"))  # of the range for documents: nobody's
    assert elsewhere.wire is None and "192.0.2.250" in elsewhere.problem and elsewhere.taken == ()


def test_sizes_are_those_of_df_and_free(tmp_path: Path):
    found = machine.machine()
    said = subprocess.run(["df", "-B1", "--output=size", "/dev/shm"], capture_output=True, text=True, check=True)
    assert found.shared_memory[0] == int(said.stdout.split()[1])
    disk = shutil.disk_usage("/tmp")
    assert found.temporary[0] == disk.total and found.temporary[1] == pytest.approx(disk.free, rel=0.2)
    total = int(subprocess.run(["free", "-b"], capture_output=True, text=True, check=True).stdout.split()[7])
    assert found.memory[0] <= total and found.memory[1] <= found.memory[0]
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)  # a container's memory is its own limit
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("1073741824\n")
    assert machine.machine(tmp_path).memory[0] == 1 << 30 >= machine.machine(tmp_path).memory[1]
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert machine.machine(tmp_path).memory[0] > 1 << 30


def test_a_folder_that_cannot_be_used_for_what_is_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert machine.unusable(str(tmp_path)) is None
    assert f"uid {os.getuid()}" in machine.unusable(str(tmp_path / "missing"))
    monkeypatch.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_flag=os.ST_NOEXEC | os.ST_NODEV))
    assert "noexec" in machine.unusable(str(tmp_path))


def test_a_machine_without_proc_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As where /proc is hidden: psutil reads it there."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    findings, traits = examination.examine_here(Wanted())
    levels = {one.check: one.level for one in findings}
    assert (levels["machine.memory"], levels["versions.packages"]) == ("error", "ok") and "Python" in traits


def test_what_is_in_the_way_of_a_run(monkeypatch: pytest.MonkeyPatch):
    assert in_the_way(Wanted()) == []
    monkeypatch.setattr(machine, "noexec", lambda folder: True)
    (line,) = in_the_way(Wanted())
    assert has_line_naming(line, "/tmp", "noexec", "--tmpfs /tmp:exec")
    without = in_the_way(Wanted(stack="ascend-cann9.1"))  # there is no NPU on this machine
    assert has_line_naming("\n".join(without), "npu-smi", "/usr/local/Ascend/driver:ro")


def test_packages_commits_and_the_chip_of_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = installed_packages()
    assert found["rich"] == Package(version("rich")) and found["ascend-quant"].version == version("ascend-quant")
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
    assert (found.chip_of_image, found.flashrl) == ("ascend910_9392", None)
    assert software({"ASCEND_QUANT_CHIP": "A2"}, tmp_path).chip_of_image == "A2"


def test_flashrl_s_patch_is_seen(tmp_path: Path):
    file = tmp_path / "usercustomize.py"
    assert patched(file) is None
    file.write_text("import sys\n")
    assert patched(file) is None
    file.write_text("import sys\ntry: import flash_rl\nexcept ImportError: pass\n")
    assert patched(file) == str(file)


def test_files_of_a_run(tmp_path: Path):
    snapshot = tmp_path / "hub/models--Qwen--Qwen3-4B/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").touch()
    (tmp_path / "data.parquet").touch()
    cached = {"HF_HOME": str(tmp_path)}
    data, out = [str(tmp_path / "data.parquet"), str(tmp_path / "no")], str(tmp_path / "new/out")
    found = files(Wanted(model="Qwen/Qwen3-4B", data=data, out=out), cached)
    assert (found.model, found.wrong_model, found.missing_data, found.writable) == (True, (), (data[1],), True)
    assert found.out == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.2)
    absent = files(Wanted(model="Qwen/Qwen3-8B"), cached)  # stack cpu downloads nothing
    assert not absent.model and "HF_HUB_OFFLINE" in absent.wrong_model[0][0]
    absent = files(Wanted(model="Qwen/Qwen3-8B", stack="cuda13"), cached)
    assert (absent.model, absent.wrong_model) == (False, ())
    for name in (str(tmp_path), f"/{'x' * 300}"):
        ((what, _),) = files(Wanted(model=name), cached).wrong_model
        assert name in what
    assert (files(Wanted(), cached).model, files(Wanted(), cached).wrong_model) == (None, ())


def test_it_is_quick_because_it_imports_no_torch():
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom launch.commands import app\n"
        "CliRunner().invoke(app, ['doctor', '--recipe', 'addition-int8'])\n"
        "sys.exit(' '.join({'torch', 'vllm', 'transformers', 'ray'} & set(sys.modules)) or 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr) == (0, "")


def test_what_is_in_the_data_files_is_looked_at_as_train_does(tmp_path: Path):
    from pyarrow import Table
    from pyarrow.parquet import write_table

    file = tmp_path / "train.parquet"
    write_table(
        Table.from_pylist([{"question": "1+1=", "data_source": "d", "reward_model": {"ground_truth": "2"}}]), file
    )
    wanted = Wanted(data=[str(file)], columns=["question", "data_source", "reward_model"], prompt="question")
    found = files(wanted, {})
    (line,) = found.wrong_data
    assert line.startswith(f"{file}: question ") and found.missing_data == ()
    wanted = Wanted(data=[str(file)], columns=["data_source", "reward_model"], least_rows={str(file): 16})
    (line,) = files(wanted, {}).wrong_data
    assert line.startswith(str(file)) and "16" in line
