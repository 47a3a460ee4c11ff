"""A job in place of verl: an actor on each host that says where it works, until the folder `GO` of the run exists."""

import os
import time
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote(num_cpus=1)
class Worker:
    def host(self) -> str:
        """The name of its host."""
        return os.uname().nodename


ray.init()
nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
workers = [
    Worker.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote() for node in nodes
]
print("working on", *sorted(ray.get([worker.host.remote() for worker in workers])), flush=True)
go = Path(os.environ["VERL_FILE_LOGGER_ROOT"]).parent / "GO"
while not go.exists():
    ray.get([worker.host.remote() for worker in workers])
    time.sleep(0.5)
print("told to end", flush=True)
