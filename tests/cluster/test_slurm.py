"""`recipe show --as slurm` under a real Slurm, on two simulated hosts; a small job stands for verl."""

import json
import re
import secrets
import time
from pathlib import Path

import pytest

from cluster.host import PROJECT, PYTHON, Host
from cluster.leftovers import left
from cluster.tools import install, on_path

pytestmark = [pytest.mark.long("launch/cluster_files"), pytest.mark.timeout(600)]

RECIPE, DEVICES = "qwen3-30b-a3b-int8-grpo-h200", 8
OUTPUT, START_SECONDS, END_SECONDS, CANCEL_SECONDS = "job.out", 30, 180, 40
NOTICES_SECONDS = 60  # later than Ray, as in real clusters
CONF = """
ClusterName=here
SlurmctldHost=node1({head})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=/var/tmp/state
SlurmdSpoolDir=/var/tmp/spool
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout={notices}
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
GresTypes=gpu
PartitionName=all Nodes=ALL Default=YES State=UP
"""
VERL = """
import json, os, sys, time, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ray.init()
names = ("SLURMD_NODENAME", "VLLM_HOST_IP", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HYDRA_FULL_ERROR")
def on_nodes(task):
    nodes = [On(node["NodeID"], soft=False) for node in ray.nodes()]
    return ray.get([ray.remote(max_retries=0, scheduling_strategy=node)(task).remote() for node in nodes])
told = sorted(on_nodes(lambda: [os.environ.get(name) for name in names]))
print("SAYS", json.dumps({"words": sys.argv[1:], "nodes": told}), flush=True)
what = open("WHAT").read()
if what == "stay":
    on_nodes(lambda: time.sleep(1e6))
sys.exit(int(what))
"""


class Slurm:
    """A Slurm of two hosts; jobs are submitted on the first, in a folder that both have."""

    def __init__(self, hosts: list[Host], folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PYTHONPATH": str(folder)}
        nodes = [f"NodeName={host.name} NodeAddr={host.address} CPUs=2 Gres=gpu:{DEVICES}" for host in hosts]
        (folder / "slurm.conf").write_text(
            CONF.format(head=hosts[0].address, notices=NOTICES_SECONDS) + "\n".join([*nodes, ""])
        )
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{DEVICES - 1}]\n")
        for number in range(DEVICES):
            (folder / f"gpu{number}").touch()  # Slurm counts the files
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        key = secrets.token_bytes(128)
        for host in hosts:
            host.name_hosts({one.name: one.address for one in hosts})
            for made in ("/run/munge", "/var/tmp/munge", "/var/tmp/state", "/var/tmp/spool"):
                host.path(made).mkdir(mode=0o755 if made == "/run/munge" else 0o700)
            host.path("/etc/munge/munge.key").unlink(missing_ok=True)
            host.path("/etc/munge/munge.key").write_bytes(key)
            host.run(["bash", "-c", "chown -R root /etc/munge && chmod 400 /etc/munge/munge.key"])
            files = {"log": "log", "seed": "seed", "pid": "pid"}
            own = [f"--{name}-file=/var/tmp/munge/{file}" for name, file in files.items()]
            host.settle(["/usr/sbin/munged", "--foreground", "--force", *own])
        hosts[0].settle(["/usr/sbin/slurmctld", "-D", "-c"], **self.environment)
        for host in hosts:
            host.settle(["/usr/sbin/slurmd", "-D", "-N", host.name], **self.environment)
        idle = ("sinfo", "-h", "-N", "-t", "idle", "-o", "%N")
        self.wait_for(lambda: self.asked(*idle).split() == [host.name for host in hosts], START_SECONDS)
        for host in hosts:
            host.residents |= host.processes()  # the daemons' own processes

    def asked(self, *command: str) -> str:
        return self.hosts[0].run(command, **self.environment)

    def wait_for(self, true, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, self.output() + self.asked("sinfo", "-N", "-l")
            time.sleep(0.3)

    def submit(self, what: str) -> str:
        """Submit the script to do this; returns the job's id."""
        (self.folder / "WHAT").write_text(what)
        (self.folder / OUTPUT).unlink(missing_ok=True)
        command = ["sbatch", "--parsable", f"--chdir={self.folder}", f"--output={OUTPUT}", f"{self.folder}/job.sbatch"]
        return self.asked(*command).strip()

    def output(self) -> str:
        file = self.folder / OUTPUT
        return file.read_text() if file.exists() else ""

    def state(self, job: str) -> tuple[str, str]:
        """The state and the exit code of a job."""
        told = dict(re.findall(r"(\w+)=(\S+)", self.asked("scontrol", "show", "job", job)))
        return told["JobState"], told["ExitCode"]

    def ended(self, job: str) -> tuple[str, str]:
        """The same, once it has ended."""
        self.wait_for(lambda: self.state(job)[0] not in ("PENDING", "RUNNING", "COMPLETING"), END_SECONDS)
        return self.state(job)


@pytest.fixture
def installed() -> None:
    """Slurm's programs and folders, before the hosts are made, which have their own view of /etc from then on."""
    if not (on_path("slurmctld") and on_path("munged")):
        install(["slurm-wlm", "munge"])


@pytest.fixture
def slurm(installed: None, hosts: list[Host], tmp_path: Path) -> Slurm:
    shown = [PYTHON, "-m", "launch", "recipe", "show", RECIPE, "--set", "trainer.nnodes=2", "--as", "slurm"]
    paths = ["--model", "/work/model", "--data", "/work/data", "--out", "/work/out"]
    (tmp_path / "job.sbatch").write_text(hosts[0].run([*shown, *paths], PYTHONPATH=str(PROJECT)))
    verl = tmp_path / "ascend_quant" / "integrations" / "verl"
    verl.mkdir(parents=True)
    for package in (verl, *verl.parents[:2]):
        (package / "__init__.py").touch()
    (verl / "main_ppo.py").write_text(VERL)
    return Slurm(hosts[:2], tmp_path)


def test_ray_forms_on_the_nodes_of_a_job_and_all_of_it_ends_with_the_job(slurm: Slurm):
    for what, state in (("0", "COMPLETED"), ("3", "FAILED")):
        job = slurm.submit(what)
        assert slurm.ended(job) == (state, f"{what}:0"), slurm.output()
        told = json.loads(re.search(r"^SAYS (.*)$", slurm.output(), re.M)[1])
        expected = [[host.name, host.address, host.nic, f"={host.nic}", "1"] for host in slurm.hosts]
        assert told["nodes"] == expected
        assert {"trainer.nnodes=2", "trainer.resume_mode=auto"} <= set(told["words"])
        assert [left(host, CANCEL_SECONDS) for host in slurm.hosts] == [set(), set()]
    job = slurm.submit("stay")
    slurm.wait_for(lambda: "SAYS" in slurm.output(), END_SECONDS)
    slurm.asked("scancel", job)
    assert slurm.ended(job)[0] == "CANCELLED"
    assert [left(host, CANCEL_SECONDS) for host in slurm.hosts] == [set(), set()]


def test_a_dead_ray_ends_the_job_and_a_dead_node_starts_it_again(slurm: Slurm):
    job = slurm.submit("stay")
    slurm.wait_for(lambda: "SAYS" in slurm.output(), END_SECONDS)
    next(one for one, words in slurm.hosts[1].commands().items() if Path(words[0]).name == "raylet").kill()
    assert slurm.ended(job) == ("FAILED", "1:0")
    assert [left(host, CANCEL_SECONDS) for host in slurm.hosts] == [set(), set()]
    job = slurm.submit("stay")
    slurm.wait_for(lambda: "SAYS" in slurm.output(), END_SECONDS)
    slurm.hosts[1].kill()
    slurm.wait_for(lambda: slurm.state(job)[0] == "PENDING", END_SECONDS)
    assert left(slurm.hosts[0], CANCEL_SECONDS) == set()
