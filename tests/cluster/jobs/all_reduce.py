"""A job in place of verl: an actor on each host, a gloo all-reduce of all of them, then work while OUT has `STAY`.

Only the hosts' environment tells gloo which interface to use. Rank r brings 4 MB of the number 10^r.
"""

import os
import socket
import time
from datetime import timedelta
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ELEMENTS = 1_000_000


@ray.remote(num_cpus=1)
class Rank:
    def host(self) -> str:
        """The name of its host."""
        return os.uname().nodename

    def meeting_point(self) -> tuple[str, int]:
        """The address of its host and a free port there."""
        address = ray.util.get_node_ip_address().strip("[]")
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
            return address, probe.getsockname()[1]

    def reduce(self, address: str, port: int, rank: int, size: int) -> tuple[float, float]:
        """The smallest and the largest element of the sum."""
        import torch
        import torch.distributed as distributed

        os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
        distributed.init_process_group("gloo", rank=rank, world_size=size, timeout=timedelta(seconds=60))
        numbers = torch.full((ELEMENTS,), 10.0**rank)
        distributed.all_reduce(numbers)
        return numbers.min().item(), numbers.max().item()


ray.init()
nodes = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in ray.nodes() if node["Alive"]]
ranks = [Rank.options(scheduling_strategy=node).remote() for node in nodes]
print("working on", *sorted(ray.get([rank.host.remote() for rank in ranks])), flush=True)
address, port = ray.get(ranks[0].meeting_point.remote())
sums = ray.get([actor.reduce.remote(address, port, rank, len(ranks)) for rank, actor in enumerate(ranks)])
print(f"hosts {len(ranks)}, sums {sums}", flush=True)
stay = Path(os.environ["VERL_FILE_LOGGER_ROOT"]).parent / "STAY"
while stay.exists():
    ray.get([rank.host.remote() for rank in ranks])
    time.sleep(0.5)
