"""A job for a Ray cluster that is there: an actor on each node with a child process, and a detached one.

python on_ray.py STAY [WORDS ..]: while the file STAY is there, it goes on. It says what it is started with.
"""

import json
import os
import subprocess
import sys
import time

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

import ascend_quant


@ray.remote(num_cpus=1)
class Worker:
    def __init__(self) -> None:
        self.child = subprocess.Popen(["sleep", "98765"])

    def told(self) -> list:
        return [os.uname().nodename, os.environ.get("NCCL_DEBUG"), ascend_quant.__file__]


stay, *words = sys.argv[1:]
ray.init()
nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
workers = [Worker.options(scheduling_strategy=On(node, soft=False)).remote() for node in nodes]
left = Worker.options(name="left", namespace="ours", lifetime="detached").remote()
answers = sorted(ray.get([worker.told.remote() for worker in [*workers, left]]))
print(
    "SAYS", json.dumps({"words": words, "workers": answers, "metrics": os.environ["VERL_FILE_LOGGER_ROOT"]}), flush=True
)
if "fail" in words:
    raise LookupError("asked to fail")
while os.path.exists(stay):
    print("working", flush=True)
    time.sleep(0.5)
