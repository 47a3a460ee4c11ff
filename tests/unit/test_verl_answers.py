"""verl's sender of weights, its own file of two versions, with receivers that end in different ways."""

import asyncio
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("verl", reason="it is verl's sender")

import verl

from ascend_quant.integrations.verl.sending import hooks
from ascend_quant.integrations.verl.sending import zmq_watchdog as answers
from ascend_quant.integrations.wrapping import install

pytestmark = pytest.mark.timeout(120)

FILE = "workers/rollout/vllm_rollout/bucketed_weight_transfer.py"
HERE = Path(__file__).parent
SOURCES = {"0.9.1": Path(verl.__file__).parent, "bcb6386": HERE / "data" / "older_verl" / "verl"}
WEIGHTS = {f"layer{i}": torch.full((512, 1024), float(i)) for i in range(3)}  # 2 MiB each: buckets of one
RECEIVE = """
import os, sys, zmq
address, answered, then = sys.argv[1], int(sys.argv[2]), sys.argv[3]
socket = zmq.Context().socket(zmq.REP)
socket.connect(address)
for _ in range(answered):
    socket.recv()
    socket.send(b"")
socket.recv()
if then == "die":
    os.kill(os.getpid(), 9)
if then == "answer, then die":
    socket.send(b"")
    socket.close()  # the answer is sent before the process ends
    socket.context.term()
"""


@pytest.fixture(params=SOURCES)
def sender(request, monkeypatch):
    """verl's class, without its package, which would import vLLM."""
    monkeypatch.syspath_prepend(SOURCES[request.param].parent)
    spec = importlib.util.spec_from_file_location("transfer", SOURCES[request.param] / FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # weights are on the host, whatever verl takes for its device here
    on_the_host = SimpleNamespace(synchronize=lambda: None, empty_cache=lambda: None, ipc_collect=lambda: None)
    monkeypatch.setattr(module, "get_torch_device", lambda: on_the_host)
    monkeypatch.setitem(sys.modules, "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer", module)
    for _ in range(2):  # once all the same
        install(hooks.WHEN_WEIGHTS_LEAVE)
    return module.BucketedWeightSender


@contextmanager
def receiver(address: str, answered: int, then: str) -> Iterator[None]:
    """A process that answers so many messages, takes one more and ends; killed if the sender ends before that."""
    with subprocess.Popen([sys.executable, "-c", RECEIVE, address, str(answered), then]) as process:
        try:
            yield
            process.wait(30)
        finally:
            process.kill()


def send(sender, address: str) -> None:
    asyncio.run(sender(address, bucket_size_mb=2, use_shm=True).async_send_weights(iter(WEIGHTS.items())))


@pytest.mark.parametrize(("answered", "then"), [(0, "close"), (2, "die")])  # the buffer's name, and buckets
def test_a_receiver_that_is_gone_ends_the_sync(sender, tmp_path, answered, then):
    address = f"ipc://{tmp_path}/socket"
    gone = pytest.raises(answers.ReceiverGone, match=f"{tmp_path}/socket after {answered} answers")
    with receiver(address, answered, then), gone:
        send(sender, address)


def test_its_last_answer_counts(sender, tmp_path):
    address = f"ipc://{tmp_path}/socket"
    with receiver(address, len(WEIGHTS), "answer, then die"):
        send(sender, address)


def test_one_that_never_comes_is_an_error(sender, tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "FIRST_ANSWER_SECONDS", 1)
    with pytest.raises(answers.ReceiverGone, match="within 1 s"):
        send(sender, f"ipc://{tmp_path}/socket")
