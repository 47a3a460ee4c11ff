"""What the doctor gathers of the real machine, beside what another program or the test itself knows."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch.doctor import machine
from launch.doctor.versions import patched
from launch.system.software import Package, cann_version, chip_of_build, installed_packages


def test_memory_is_that_of_free_or_of_the_container(tmp_path: Path):
    free = subprocess.run(["free", "-b"], capture_output=True, text=True, check=True)
    total, available = machine.memory_here()
    assert available <= total <= int(free.stdout.split()[7])
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)  # a container's memory is its own limit
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("1073741824\n")
    assert machine.memory_here(tmp_path)[0] == 1 << 30 >= machine.memory_here(tmp_path)[1]
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert machine.memory_here(tmp_path)[0] > 1 << 30


def test_a_folder_that_cannot_be_used_for_what_is_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert machine.unusable(str(tmp_path)) is None
    assert f"uid {os.getuid()}" in machine.unusable(str(tmp_path / "missing"))
    monkeypatch.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_flag=os.ST_NOEXEC | os.ST_NODEV))
    assert "noexec" in machine.unusable(str(tmp_path))


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
    found = installed_packages()
    assert found["vllm-ascend"].commit == "7e16b4a7c" and found["verl"].commit == "bcb6386"
    assert chip_of_build() == "ascend910_9392"


def test_flashrl_s_patch_is_seen(tmp_path: Path):
    file = tmp_path / "usercustomize.py"
    assert patched(file) is None
    file.write_text("import sys\n")
    assert patched(file) is None
    file.write_text("import sys\ntry: import flash_rl\nexcept ImportError: pass\n")
    assert patched(file) == str(file)


def test_cann_where_its_variables_point(tmp_path: Path):
    info = "package_name=Ascend-cann-toolkit\nversion=8.5.0\ninnerversion=V100R001C25SPC001B232\narch=aarch64\n"
    for folder in ("own/aarch64-linux", "usr/local/Ascend/ascend-toolkit/latest/aarch64-linux"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "own/aarch64-linux/ascend_toolkit_install.info").write_text(info)
    own = str(tmp_path / "own")
    assert cann_version(tmp_path, {"ASCEND_HOME_PATH": own})[0] == "8.5.0"
    assert cann_version(tmp_path, {})[0] is None
    usual = tmp_path / "usr/local/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info"
    usual.write_text(info.replace("8.5.0", "9.1.0"))
    assert cann_version(tmp_path, {}) == ("9.1.0", str(usual))
    assert cann_version(tmp_path, {"ASCEND_HOME_PATH": str(tmp_path)}) == (None, f"{tmp_path} (ASCEND_HOME_PATH)")


def test_it_is_quick_because_it_imports_no_torch():
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom launch.commands import app\n"
        "CliRunner().invoke(app, ['doctor', '--recipe', 'addition-int8'])\n"
        "sys.exit(' '.join({'torch', 'vllm', 'transformers', 'ray'} & set(sys.modules)) or 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr) == (0, "")
