"""What carries weights from a trainer to engines elsewhere, on CPUs, where verl 0.9.1 has nothing: TCP.

verl imports it by `checkpoint_engine.custom_backend_module`.
"""

import pickle
from collections.abc import AsyncIterator, Iterable

import ray
import torch
import zmq
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

END = b"end"


@CheckpointEngineRegistry.register("tcp")
class TcpCheckpointEngine(CheckpointEngine):
    """Rank 0 of the trainers sends to every rollout's worker, which asks first."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self.is_master, self.socket, self.peers = is_master, None, 0

    def prepare(self) -> str | None:
        if not self.is_master:
            return None
        if self.socket is None:
            self.socket = zmq.Context.instance().socket(zmq.ROUTER)
            port = self.socket.bind_to_random_port(f"tcp://{ray.util.get_node_ip_address()}")
            self.address = f"tcp://{ray.util.get_node_ip_address()}:{port}"
        return self.address

    @classmethod
    def build_topology(cls, trainers: int, rollouts: int, metadata: list) -> tuple[dict, dict]:
        def of(ranks: list[int]) -> dict[str, list]:
            return {"rank": ranks, "peers": [rollouts] * len(ranks), "address": [metadata[0]] * len(ranks)}

        return of([0] + [-1] * (trainers - 1)), of(list(range(1, rollouts + 1)))

    def init_process_group(self, rank: int, peers: int, address: str) -> None:
        self.rank, self.peers = rank, peers
        if rank > 0 and self.socket is None:
            self.socket = zmq.Context.instance().socket(zmq.DEALER)
            self.socket.connect(address)

    def finalize(self) -> None:
        """Connections stay for the next sync."""

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        asking = [self.socket.recv_multipart()[0] for _ in range(self.peers)] if self.rank == 0 else []
        for name, tensor in weights:  # every rank has its part in gathering them
            for peer in asking:
                self.socket.send(peer, zmq.SNDMORE)
                self.socket.send_pyobj((name, tensor.detach().cpu()))
        for peer in asking:
            self.socket.send_multipart([peer, END])

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        self.socket.send(b"ready")
        while (message := self.socket.recv()) != END:
            yield pickle.loads(message)
