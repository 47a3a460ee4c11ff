"""vLLM's NCCL weight transfer over gloo, on hosts without GPUs: what it calls, and in which order, stays vLLM's own.

A server knows it as backend "gloo" with `--worker-extension-cls gloo_wire.Wired`. Each tensor goes by itself, unpacked.
"""

import re
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from typing import Any
from unittest import mock

import torch
from vllm.distributed.utils import stateless_init_torch_distributed_process_group as gloo_group
from vllm.distributed.weight_transfer import nccl_engine
from vllm.distributed.weight_transfer.base import ModuleSource
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

HOST = "127.0.0.1"
OPTIONS = ("--worker-extension-cls", "gloo_wire.Wired", "--weight-transfer-config", '{"backend": "gloo"}')


class Group:
    """The trainer, rank 0, and an engine's workers: in the place of a communicator of NCCL's."""

    def __init__(self, address: str, port: int, rank: int, size: int):
        self.group = gloo_group(address, port, rank, size, "gloo")

    def broadcast(self, tensor: torch.Tensor, src: int, stream: None = None) -> None:
        options = torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        self.group.broadcast([tensor], options).wait()


def no_streams() -> AbstractContextManager[Any]:
    """torch of a CPU has no stream to name."""
    return mock.patch("torch.cuda.current_stream", lambda: None)


class GlooWeightTransferEngine(nccl_engine.NCCLWeightTransferEngine):
    """A worker's side."""

    def init_transfer_engine(self, init_info) -> None:
        rank = self.parallel_config.rank + init_info.rank_offset
        self.model_update_group = Group(init_info.master_address, init_info.master_port, rank, init_info.world_size)

    def receive_weights(self, update_info) -> None:
        with no_streams():
            super().receive_weights(update_info)


if "gloo" not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine("gloo", GlooWeightTransferEngine)


class Wired:
    """Importing this module is all that it is for."""


def free_port() -> int:
    with closing(socket.socket()) as free:
        free.bind((HOST, 0))
        return free.getsockname()[1]


def digests(said: str) -> list[str]:
    """Of an engine's log: what it held after its start and after each sync."""
    return re.findall(r"Receipt\(number=\d+, .*digest='(\w+)'", said)


def sender(address: str, model: torch.nn.Module) -> Callable[[], None]:
    """Join the server as its trainer; what is returned sends the model: start, update, finish."""
    info = nccl_engine.NCCLTrainerInitInfo(
        rank=0, master_address=HOST, master_port=free_port(), world_size=2, packed=False
    )
    with mock.patch.object(nccl_engine, "open_trainer_endpoint", lambda info: Group(HOST, info.master_port, 0, 2)):
        trainer = nccl_engine.NCCLTrainerWeightTransferEngine.trainer_init(
            info, client=HTTPVLLMWeightSyncClient(address), source=ModuleSource(model)
        )

    def send() -> None:
        with no_streams():
            trainer.send_weights()

    return send
