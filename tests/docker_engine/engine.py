"""An engine that runs: how to reach it, and how a private one starts and ends."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cluster.tools import on_path

from docker_engine.programs import PLUGINS, unpack

OLDEST = 23  # the first whose builder takes named contexts
START_SECONDS = 60


@dataclass(frozen=True)
class Engine:
    """A running engine.

    Attributes:
        host: its address.
        own: variables that a private engine's client needs.
    """

    host: str
    own: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which the docker client finds this engine."""
        return {**os.environ, **self.own, "DOCKER_HOST": self.host}

    def docker(self, *arguments: str | Path, timeout: int = 120, **more) -> subprocess.CompletedProcess:
        """`docker ARGUMENTS`, with what it printed.

        Raises:
            AssertionError: it failed; the text is its stderr.
        """
        done = self.tried(*arguments, timeout=timeout, **more)
        assert done.returncode == 0, f"docker {' '.join(map(str, arguments[:2]))}: {done.stdout}{done.stderr}"
        return done

    def tried(self, *arguments: str | Path, timeout: int = 120, **more) -> subprocess.CompletedProcess:
        """`docker ARGUMENTS`, however it ends."""
        options = {"capture_output": True, "text": True, "env": self.environment} | more
        return subprocess.run(["docker", *map(str, arguments)], timeout=timeout, **options)


@contextmanager
def engine(folder: Path) -> Iterator[Engine]:
    """An engine with buildx and compose; `folder` is where a private one keeps its files."""
    hosts = Engine(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"))
    if _serves(hosts):
        yield hosts
        return
    if os.geteuid():
        pytest.skip(f"no Docker engine {OLDEST} or newer with buildx answers at {hosts.host}; only root can start one")
    with _private(folder) as private:
        yield private


def _serves(one: Engine) -> bool:
    if not on_path("docker"):
        return False
    version = one.tried("version", "--format", "{{.Server.Version}}", timeout=30)
    plugins = [one.tried(plugin, "version", timeout=30).returncode for plugin in ("buildx", "compose")]
    return version.returncode == 0 and int(version.stdout.split(".")[0]) >= OLDEST and not any(plugins)


@contextmanager
def _private(folder: Path) -> Iterator[Engine]:
    root = unpack(folder / "programs")
    shutil.copytree(root / PLUGINS, folder / "config" / "cli-plugins")
    path = f"{root}/usr/sbin:{root}/usr/bin:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    started = Engine(f"unix://{folder}/docker.sock", {"PATH": path, "DOCKER_CONFIG": f"{folder}/config"})
    options = [
        f"--data-root={folder}/data",
        f"--exec-root={folder}/exec",
        f"--pidfile={folder}/pid",
        "--storage-driver=overlay2",
    ]
    log = folder / "dockerd.log"
    with log.open("w") as out:
        daemon = subprocess.Popen(
            ["dockerd", *options, "-H", started.host], stdout=out, stderr=subprocess.STDOUT, env=started.environment
        )
    try:
        _wait(started, daemon, log)
        yield started
    finally:
        daemon.terminate()
        daemon.wait(60)
        shutil.rmtree(folder / "data", ignore_errors=True)


def _wait(started: Engine, daemon: subprocess.Popen, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while started.tried("info", timeout=30).returncode:
        assert daemon.poll() is None and time.monotonic() < until, f"dockerd did not start:\n{log.read_text()}"
        time.sleep(0.5)
