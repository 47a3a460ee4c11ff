"""The names of the sockets that carry weights: one in a run, another in each run on the host."""

import subprocess
import sys

import pytest

pytest.importorskip("verl", reason="the names are verl's")

from ascend_quant.integrations.verl.sending.socket_names import socket_name_for_run

pytestmark = pytest.mark.timeout(180)

OLDER = "ipc:///tmp/rl-colocate-zmq-GPU-0.sock"  # of a verl that names the device
NAMES = f"""
import os
import ray
from ascend_quant.integrations.verl.sending.socket_names import JOB, name_for_engine, socket_name_for_run

def verls(job):
    return f"ipc:///tmp/rl-colocate-zmq-{{job}}-replica-0-rank-0.sock"

@ray.remote
class Server:
    def address(self):
        name_for_engine()
        return verls(os.environ[JOB])

@ray.remote
class Trainer:
    def address(self):
        name = verls(ray.get_runtime_context().get_job_id())
        return name, socket_name_for_run(name)

ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
served = ray.get(Server.remote().address.remote())
print(*ray.get(Trainer.remote().address.remote()), served, socket_name_for_run("{OLDER}"))
"""


def test_two_runs_on_a_host_have_sockets_of_their_own():
    command = [sys.executable, "-c", NAMES]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [run.communicate(timeout=150)[0].split() for run in runs]
    (verls, sent, received, older), (verls_there, sent_there, received_there, _) = said
    assert verls == verls_there, "this shows nothing: verl's own names differ"
    assert sent == received != sent_there == received_there
    assert older == OLDER and len(sent.removeprefix("ipc://")) <= 107


def test_outside_of_ray_the_name_is_verls():
    assert socket_name_for_run("ipc:///tmp/rl-colocate-zmq-0-replica-0-rank-0.sock").endswith(
        "-zmq-0-replica-0-rank-0.sock"
    )
