"""A job in place of verl: one actor on each host, and a gloo all-reduce of all of them, wired by the environment alone.

Rank r brings 4 MB of the number 10^r; rank 0 prints what it has at the end.
"""

import os
import socket
from datetime import timedelta

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ELEMENTS = 1_000_000


@ray.remote(num_cpus=1)
class Rank:
    def meeting_point(self) -> tuple[str, int]:
        """The address of this host and a free port."""
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
        distributed.destroy_process_group()
        return numbers.min().item(), numbers.max().item()


ray.init()
nodes = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
ranks = [Rank.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote() for node in nodes]
address, port = ray.get(ranks[0].meeting_point.remote())
sums = ray.get([actor.reduce.remote(address, port, rank, len(ranks)) for rank, actor in enumerate(ranks)])
print(f"hosts {len(ranks)}, sums {sums}", flush=True)
