"""The engine's side of benchmarks/soak.py: a sender process for each sync of a worker, and how syncs go wrong.

The sender is forked from the worker and writes the tensors of a checkpoint, times a factor, to a socket.
"""

import json
import os
import signal
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file

from ascend_quant.integrations.vllm import refit_of

NamedTensor = tuple[str, torch.Tensor]
BUCKET = 1 << 16  # bytes
HEADER = struct.Struct("<I")
BY_SENDER = ("sender killed", "socket cut")
FAULTS = (
    *("a tensor is missing", "an extra tensor", "a tensor twice", "a row less", "an integer norm", "a list"),
    *("NaN in the last bucket", "Inf in the first tensor", "the sender raises", "disk full", *BY_SENDER),
)


class Soaked:
    """A vLLM worker extension."""

    def soak_sync(self, folder: str, factor: float, fault: str | None, rank: int) -> str:
        """One sync of checkpoint `folder` times `factor`; `fault` befalls worker `rank` alone. Returns the digest."""
        here = fault if self.rank == rank else None
        state = {name: tensor * factor for name, tensor in load_file(next(Path(folder).glob("*.safetensors"))).items()}
        model = self.model_runner.model
        with refit_of(model).session(), Sender(state, here if here in BY_SENDER else None) as sender:
            for bucket in buckets(spoilt(sender.tensors(), list(state), here)):
                model.load_weights(bucket)
        return refit_of(model).last_receipt.digest


class Sender:
    """A process that sends tensors; gone when the block ends.

    Args:
        fault: what befalls it half-way, if anything: one of BY_SENDER.
    """

    def __init__(self, state: Mapping[str, torch.Tensor], fault: str | None):
        frames = [_frame(name, tensor) for name, tensor in state.items()]
        self.socket, other = socket.socketpair()
        self.pid = os.fork()
        if self.pid:
            other.close()
            return
        try:  # the sender: nothing but system calls, since it is a fork of a process with threads
            self.socket.close()
            for i, frame in enumerate(frames):
                if fault is not None and i == len(frames) // 2:
                    other.sendall(frame[: len(frame) // 2])
                    os.kill(os.getpid(), signal.SIGKILL) if fault == "sender killed" else other.close()
                other.sendall(frame)
        finally:
            os._exit(0)

    def __enter__(self) -> "Sender":
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()  # a sender that still writes gets EPIPE
        os.waitpid(self.pid, 0)

    def tensors(self) -> Iterator[NamedTensor]:
        """What it sends, until it is through; ConnectionError if it breaks off."""
        while length := self._read(HEADER.size, may_end=True):
            said = json.loads(self._read(HEADER.unpack(length)[0]))
            memory = bytearray(self._read(said["bytes"]))
            yield said["name"], torch.frombuffer(memory, dtype=torch.bfloat16).view(said["shape"])

    def _read(self, count: int, may_end: bool = False) -> bytes:
        parts = []
        while count:
            part = self.socket.recv(min(count, 1 << 20))
            if not part and may_end and not parts:
                return b""
            if not part:
                raise ConnectionError("the sender broke off in the middle of a tensor")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def _frame(name: str, tensor: torch.Tensor) -> bytes:
    values = tensor.to(torch.bfloat16).contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    said = json.dumps({"name": name, "shape": list(tensor.shape), "bytes": len(values)}).encode()
    return HEADER.pack(len(said)) + said + values


def spoilt(weights: Iterator[NamedTensor], names: list[str], fault: str | None) -> Iterator[NamedTensor]:
    """The weights, with a fault among them."""
    norm = next(name for name in names if name.endswith("norm.weight"))
    linear = next(name for name in names if name.endswith("down_proj.weight"))
    for name, tensor in weights:
        first, last = name == names[0], name == names[-1]
        if fault == "the sender raises" and name == linear:
            raise RuntimeError("the trainer's gather failed")
        if fault == "disk full" and name == linear:
            with open("/dev/full", "wb", buffering=0) as file:  # where a transfer would spill a bucket
                file.write(b"\0")
        if (fault == "NaN in the last bucket" and last) or (fault == "Inf in the first tensor" and first):
            tensor = tensor.clone()
            ends = [0, -1]  # a vocabulary's first rows are one rank's, its last rows another's
            tensor.view(-1)[ends] = float("nan" if last else "inf")
        if fault == "a row less" and name == linear:
            tensor = tensor[:-1]
        if fault == "an integer norm" and name == norm:
            tensor = tensor.to(torch.int16)
        if fault == "a list" and name == linear:
            tensor = tensor.tolist()
        if not (fault == "a tensor is missing" and name == linear):
            yield name, tensor
        if fault == "a tensor twice" and name == linear:
            yield name, tensor
        if fault == "an extra tensor" and name == linear:
            yield f"{name}.more", tensor


def buckets(weights: Iterator[NamedTensor]) -> Iterator[list[NamedTensor]]:
    """Lists of some BUCKET bytes."""
    bucket, size = [], 0
    for name, tensor in weights:
        bucket.append((name, tensor))
        size += getattr(tensor, "nbytes", 0)
        if size > BUCKET:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket
