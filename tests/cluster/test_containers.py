"""Hosts that are containers: three on a Docker network, and one that the launcher starts itself from `image`."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cluster.docker_engine import IMAGE, ROOT, Engine, engine, mounts

ADDRESSES = ("10.77.9.11", "10.77.9.12", "10.77.9.13")
SUBNET = "10.77.9.0/24"
SECONDS = 240
JOB = ROOT / "tests" / "cluster" / "launch_job.py"
JOBS = JOB.parent / "jobs"


@pytest.fixture(scope="module")
def docker(tmp_path_factory) -> Iterator[Engine]:
    with engine(tmp_path_factory.mktemp("docker")) as running:
        yield running


@pytest.fixture
def network(docker: Engine) -> Iterator[str]:
    name = f"ascend-quant-test-{uuid.uuid4().hex[:8]}"
    docker.docker("network", "create", "--subnet", SUBNET, name)
    yield name
    if left := docker.docker("ps", "--quiet", "--filter", f"network={name}").stdout.split():
        docker.docker("rm", "--force", *left)  # of a test that failed
    docker.docker("network", "rm", name)


def inventory(folder: Path, addresses: tuple[str, ...], **more) -> Path:
    file = folder / "cluster.yaml"
    hosts = [{"address": address} for address in addresses]
    tree = {"stack": "cpu", "project": str(ROOT), "python": sys.executable, "hosts": hosts, "shared": [str(folder)]}
    file.write_text(yaml.safe_dump({**tree, "join_seconds": 120, **more}))
    return file


def test_three_containers_on_a_network_are_one_cluster(docker, network, tmp_path):
    """Each runs the same command, finds its role from its own address, and all-reduces with the others over gloo."""
    file = inventory(tmp_path, ADDRESSES)
    command = [sys.executable, JOB, file, JOBS / "all_reduce.py", tmp_path / "out", "--on-this-node"]
    binds = [part for mount in mounts() for part in ("-v", mount)]
    running = []
    for address in ADDRESSES:
        options = ["--rm", "--init", "--network", network, "--ip", address, "--shm-size", "2g", "-w", tmp_path]
        options += ["-v", f"{tmp_path}:{tmp_path}", "-e", f"PYTHONPATH={ROOT}", *binds]
        begun = subprocess.Popen(
            [*map(str, ["docker", "run", *options, IMAGE, *command])],
            env=docker.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running.append(begun)
    texts = [begun.communicate(timeout=SECONDS)[0] for begun in running]
    assert [begun.returncode for begun in running] == [0, 0, 0], "\n\n".join(texts)
    assert "hosts 3, sums [(111.0, 111.0), (111.0, 111.0), (111.0, 111.0)]" in texts[0]


def test_a_host_runs_in_the_image_of_its_inventory(docker, tmp_path):
    """The launcher's own `docker run` on this machine: the job sees the image's root, and no container stays."""
    job = tmp_path / "where.py"
    job.write_text("import os; print('root', sorted(os.listdir('/')), flush=True)\n")
    file = inventory(tmp_path, ("127.0.0.1",), image=IMAGE, mounts=[*mounts(), f"{tmp_path}:{tmp_path}"])
    command = [sys.executable, JOB, file, job, tmp_path / "out"]
    done = subprocess.run(
        command,
        env={**docker.environment, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'home'" not in done.stdout and "'usr'" in done.stdout.split("root [")[1]
    names = docker.docker("ps", "-a", "--format", "{{.Names}}").stdout
    assert "ascend-quant-" not in names
