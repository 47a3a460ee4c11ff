"""What carries weights from a trainer to engines elsewhere, on CPUs, where verl 0.9.1 has nothing: TCP.

verl imports it by `checkpoint_engine.custom_backend_module`. Buckets are packed and read as verl's engines for NCCL and
HCCL do it.
"""

import pickle
from collections.abc import AsyncIterator, Iterable

import ray
import torch
import zmq
from verl.checkpoint_engine import base


@base.CheckpointEngineRegistry.register("tcp")
class TcpCheckpointEngine(base.CheckpointEngine):
    """Rank 0 of the trainers sends to every rollout's worker, which asks first.

    Args:
        corrupts: the sync whose first bucket has a wrong bit at its beginning; the first one is 1.
    """

    def __init__(self, bucket_size: int, is_master: bool = False, corrupts: int | None = None) -> None:
        self.is_master, self.socket, self.peers = is_master, None, 0
        self.bucket_size, self.corrupts, self.syncs = bucket_size, corrupts, 0

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
        self.syncs += 1
        asking = [self.socket.recv_multipart()[0] for _ in range(self.peers)] if self.rank == 0 else []
        found, size, wrong = [], 0, self.syncs == self.corrupts
        async for meta, chunk in base.split_weight_chunks(weights, self.bucket_size):  # every rank helps to gather them
            if size + meta.chunk_size > self.bucket_size:
                self._send(asking, found, wrong)
                found, size, wrong = [], 0, False
            meta.offset = size
            found.append((meta, chunk.detach().cpu().clone()))
            size += meta.chunk_size
        self._send(asking, found, wrong)
        for peer in asking:
            self.socket.send_multipart([peer, b"", b""])

    def _send(self, asking: list[bytes], found: list[tuple[base.TensorMeta, torch.Tensor]], wrong: bool) -> None:
        bucket = torch.cat([chunk for _, chunk in found])
        bucket[0] ^= wrong
        for peer in asking:
            self.socket.send_multipart([peer, pickle.dumps([meta for meta, _ in found]), bucket.numpy().tobytes()])

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        self.socket.send(b"ready")
        async for name, weight in base.merge_weight_chunks(self._chunks(), self.bucket_size):
            yield name, weight

    async def _chunks(self) -> AsyncIterator[tuple[base.TensorMeta, torch.Tensor]]:
        while metas := self.socket.recv():
            bucket = torch.frombuffer(bytearray(self.socket.recv()), dtype=torch.uint8)
            for meta in pickle.loads(metas):
                yield meta, bucket[meta.offset : meta.offset + meta.chunk_size]
        self.socket.recv()
