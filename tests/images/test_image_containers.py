"""Hosts that are containers of the cpu image: two train on a Docker network, one is started by the launcher."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import addition_start
import pytest
import yaml
from docker_engine.engine import Engine

from launch import ROOT

pytestmark = pytest.mark.timeout(1500)

# Another one each time: what an interrupted run leaves in iptables would masquerade the packets of the next.
NETWORK = f"10.77.{128 + os.getpid() % 120}"
ADDRESSES = (f"{NETWORK}.11", f"{NETWORK}.12")
SUBNET = f"{NETWORK}.0/24"
SECONDS = 900
STEPS, PROMPTS, SAMPLES = 2, 6, 2  # prompts and samples of a step are dealt out to the ranks
OVERRIDES = {
    "data.train_batch_size": PROMPTS,
    "actor_rollout_ref.actor.ppo_mini_batch_size": PROMPTS,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": SAMPLES * PROMPTS // len(ADDRESSES),
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": SAMPLES * PROMPTS // len(ADDRESSES),
    "trainer.total_training_steps": STEPS,
    "trainer.save_freq": -1,
}
OF_THE_IMAGE = 1000  # its user


@pytest.fixture
def network(docker: Engine) -> Iterator[str]:
    name = f"ascend-quant-test-{uuid.uuid4().hex[:8]}"
    docker.docker("network", "create", "--subnet", SUBNET, name)
    yield name
    if left := docker.docker("ps", "--quiet", "--filter", f"network={name}").stdout.split():
        docker.docker("rm", "--force", *left)  # of a test that failed
    docker.docker("network", "rm", name)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that the containers share, their user's: the recipe's data, and its model without the warm-up."""
    addition_start.write(tmp_path / "data", STEPS * PROMPTS)
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, OF_THE_IMAGE, OF_THE_IMAGE)
    return tmp_path


def inventory(folder: Path, addresses: tuple[str, ...], **more) -> Path:
    file = folder / "cluster.yaml"
    tree = {"stack": "cpu", "hosts": [{"address": address} for address in addresses], "join_seconds": 240, **more}
    file.write_text(yaml.safe_dump(tree))
    return file


def test_containers_train(docker: Engine, cpu: str, network: str, shared: Path):
    """Each runs the same verb, finds its role from its own address, and has a rank and an INT8 replica."""
    inventory(shared, ADDRESSES, shared=["/work"])
    verb = ["train", "addition-int8", "--cluster", "/work/cluster.yaml", "--on-this-node"]
    verb += ["--set", f"trainer.nnodes={len(ADDRESSES)}", "--set", f"actor_rollout_ref.rollout.n={SAMPLES}"]
    verb += [
        "--data",
        "/work/data",
        "--out",
        "/work/out",
        "--",
        *(f"{name}={value}" for name, value in OVERRIDES.items()),
    ]
    running = []
    for address in ADDRESSES:
        options = ["--rm", "--network", network, "--ip", address, "--shm-size", "2g", "-v", f"{shared}:/work"]
        command = ["docker", "run", *options, cpu, *verb]
        running.append(
            subprocess.Popen(
                command, env=docker.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    texts = [begun.communicate(timeout=SECONDS)[0] for begun in running]
    assert [begun.returncode for begun in running] == [0] * len(ADDRESSES), "\n\n".join(text[-4000:] for text in texts)
    lines = [line for file in (shared / "out").rglob("*.jsonl") for line in file.read_text().splitlines()]
    steps = {line["step"]: line["data"] for line in map(json.loads, lines)}
    assert {1, 2} <= set(steps)
    for step in (steps[1], steps[2]):
        assert step["refit/verified"] == addition_start.TENSORS
        assert all(step[f"refit/replica{rank}/milliseconds"] > 0 for rank in range(len(ADDRESSES)))


def test_a_host_runs_in_the_image_of_its_inventory(docker: Engine, cpu: str, tmp_path: Path):
    """The launcher's own `docker run` on this machine: the job sees the image's files, and no container stays."""
    os.chown(tmp_path, OF_THE_IMAGE, OF_THE_IMAGE)
    job = tmp_path / "where.py"
    job.write_text("import sys; from launch import ROOT; print('in', ROOT, sys.executable, flush=True)\n")
    file = inventory(tmp_path, ("127.0.0.1",), image=cpu, mounts=[f"{tmp_path}:{tmp_path}"], shared=[str(tmp_path)])
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "cluster" / "launch_job.py", file, job, tmp_path / "out"],
        env={**docker.environment, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "in /opt/ascend-quant /opt/venv/bin/python" in done.stdout
    names = docker.docker("ps", "-a", "--format", "{{.Names}}").stdout
    assert "ascend-quant-2" not in names, names
