"""A job in place of verl: TransferQueue as verl starts it and torch's store on each host, while OUT has `STAY`.

Each host's actor puts a tensor into the queue and gets what the one before it has put. The ports are printed.
"""

import os
import time
from pathlib import Path

import ray
import torch
import transfer_queue
from omegaconf import OmegaConf
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

PARTITION = "steps"


@ray.remote(num_cpus=1)
class Rank:
    def __init__(self) -> None:
        from torch.distributed import TCPStore

        transfer_queue.init()
        self.store = TCPStore(ray.util.get_node_ip_address(), 0, is_master=True, wait_for_workers=False)

    def port(self) -> int:
        return self.store.port

    def put(self, key: str) -> None:
        transfer_queue.kv_put(key, PARTITION, {"numbers": torch.arange(10)})

    def get(self, key: str) -> int:
        return int(transfer_queue.kv_batch_get([key], PARTITION)["numbers"].sum())


ray.init()
sizes = {"total_storage_size": 1000, "num_data_storage_units": 8}
transfer_queue.init(OmegaConf.create({"backend": {"storage_backend": "SimpleStorage", "SimpleStorage": sizes}}))
nodes = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in ray.nodes() if node["Alive"]]
ranks = [Rank.options(scheduling_strategy=node).remote() for node in nodes]
ray.get([rank.put.remote(f"of {number}") for number, rank in enumerate(ranks)])
sums = ray.get([rank.get.remote(f"of {number - 1 if number else len(ranks) - 1}") for number, rank in enumerate(ranks)])
print("stores", *ray.get([rank.port.remote() for rank in ranks]), "sums", sums, flush=True)
stay = Path(os.environ["VERL_FILE_LOGGER_ROOT"]).parent / "STAY"
while stay.exists():
    time.sleep(0.5)
transfer_queue.close()
