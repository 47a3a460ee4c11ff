"""What the simulated hosts need of this machine: root, namespaces, and a few programs, installed when missing."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

PACKAGES = {"ip": "iproute2", "sshd": "openssh-server", "ssh": "openssh-client", "nsenter": "util-linux"}
LOCK = Path(tempfile.gettempdir(), "ascend-quant-tests-apt.lock")


def need_namespaces() -> None:
    """Skip unless this process may make namespaces; then see to it that the programs are there."""
    if os.geteuid():
        pytest.skip("simulated hosts need root: run ./run.sh test cluster as root")
    tried = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"simulated hosts need namespaces, and this container may make none: {tried.stderr.strip()}")
    install([package for program, package in PACKAGES.items() if not on_path(program)])


def on_path(program: str) -> bool:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None


def install(packages: list[str]) -> None:
    """apt-get install, one process at a time; where that does not work, skip, or fail in CI, which has to show it."""
    if not packages:
        return
    print(f"simulated hosts: apt-get install {' '.join(packages)}", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # 1: no daemon is started
    options = ["-qq", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"]
    give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # cluster and images run side by side, and apt-get update waits for no one
        for command in (["apt-get", "update", "-qq"], ["apt-get", "install", *options, *packages]):
            if shutil.which("apt-get") is None:
                give_up(f"simulated hosts need {', '.join(packages)}: install them (no apt-get here)")
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            if done.returncode:
                said = f"{' '.join(command)}: {done.stderr.strip()[-300:]}"
                give_up(f"simulated hosts need {', '.join(packages)}: {said}")
