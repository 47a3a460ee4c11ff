"""A Docker engine for the tests: the one that answers already, or a private one that ends with them.

The image of these tests is a stand-in: empty folders over which the host's own /usr and this checkout are mounted
read-only. It shows the launcher's side of a container (command, mounts, network, ending), not the contents of an image.
"""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.tools import install, on_path

PACKAGES = {"docker": "docker.io", "dockerd": "docker.io", "iptables": "iptables"}
IMAGE = "ascend-quant-stand-in:1"
ROOT = Path(__file__).parents[2]
START_SECONDS = 60


@dataclass(frozen=True)
class Engine:
    """A running engine and how to reach it."""

    host: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which the docker client finds this engine."""
        return {**os.environ, "DOCKER_HOST": self.host}

    def docker(self, *arguments: str, timeout: int = 120, **more) -> subprocess.CompletedProcess:
        """`docker ARGUMENTS`, with what it printed.

        Raises:
            AssertionError: it failed; the text is its stderr.
        """
        command = ["docker", *map(str, arguments)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=timeout, **more)
        assert done.returncode == 0, f"docker {arguments[0]}: {done.stderr}"
        return done


@contextmanager
def engine(folder: Path) -> Iterator[Engine]:
    """An engine, with IMAGE in it; `folder` is where a private one keeps its files."""
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if on_path("docker") and _answers(host):
        yield _with_image(Engine(host))
        return
    if os.geteuid():
        pytest.skip(f"no Docker engine answers at {host}, and only root can start one")
    install(sorted({package for program, package in PACKAGES.items() if not on_path(program)}))
    with _private(folder) as private:
        yield _with_image(private)


def _answers(host: str) -> bool:
    environment = {**os.environ, "DOCKER_HOST": host}
    return subprocess.run(["docker", "info"], env=environment, capture_output=True, timeout=30).returncode == 0


@contextmanager
def _private(folder: Path) -> Iterator[Engine]:
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "dockerd.log"
    started = Engine(f"unix://{folder}/docker.sock")
    options = ["--data-root", folder / "data", "--exec-root", folder / "exec", "--pidfile", folder / "pid"]
    with log.open("w") as out:
        daemon = subprocess.Popen(["dockerd", *options, "-H", started.host], stdout=out, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + START_SECONDS
        while not _answers(started.host):
            assert daemon.poll() is None and time.monotonic() < until, f"dockerd did not start:\n{log.read_text()}"
            time.sleep(0.5)
        yield started
    finally:
        daemon.terminate()
        daemon.wait(30)
        shutil.rmtree(folder / "data", ignore_errors=True)


def _with_image(engine: Engine) -> Engine:
    engine.docker("import", "-", IMAGE, input=_empty_root())
    return engine


def _empty_root() -> str:
    """A root file system, as a tar archive: folders to mount on, and the links of a merged /usr."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in ("usr", "etc", "root", "proc", "sys", "dev", "run", "var", "sbin"):  # docker puts its init in sbin
            archive.addfile(_member(name, tarfile.DIRTYPE, 0o755))
        archive.addfile(_member("tmp", tarfile.DIRTYPE, 0o1777))
        for name in ("bin", "lib", "lib64"):
            archive.addfile(_member(name, tarfile.SYMTYPE, 0o777, target=f"usr/{name}"))
        for name, text in {"etc/passwd": "root:x:0:0::/root:/bin/bash\n", "etc/group": "root:x:0:\n"}.items():
            archive.addfile(_member(name, tarfile.REGTYPE, 0o644, size=len(text)), io.BytesIO(text.encode()))
    return content.getvalue().decode()  # zeros and ASCII alone


def _member(name: str, kind: bytes, mode: int, target: str = "", size: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.linkname, member.size = kind, mode, target, size
    return member


def mounts() -> list[str]:
    """What makes this checkout's environment run in a container of IMAGE, as HOST:CONTAINER:ro."""
    python = Path(sys.executable).resolve().parents[1]  # the interpreter that the environment was made from
    folders = {Path("/usr"), ROOT, Path(sys.prefix), python}
    outermost = [one for one in folders if not any(other in one.parents for other in folders)]
    return [f"{folder}:{folder}:ro" for folder in sorted(outermost)]
