"""What leaves a trainer passes unharmed through verl's checkpoint engines, and through the hop behind them.

verl's own engines for NCCL and HCCL, on a CPU: their files as they are, with stand-ins for the device, its broadcast
and the socket beside it. Codes with an odd number of bytes lie before float32 scales there; whatever is larger than a
bucket travels in pieces.
"""

import asyncio
import importlib
import pickle
import queue
import sys
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace

import pytest
from naming import line_naming

pytest.importorskip("verl", reason="the verl adapter needs verl")
pytest.importorskip("vllm", reason="verl's rollouts need vLLM")

import torch
from verl.checkpoint_engine import base
from verl.checkpoint_engine.base import CheckpointEngineRegistry
from verl.plugin.platform import platform_manager
from verl.utils import device
from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer as hop

from ascend_quant.integrations.verl.platform import PlatformCPU
from ascend_quant.integrations.verl.receiving.receiver import DrainingReceiver
from ascend_quant.integrations.verl.sending import delta_sync as patches
from ascend_quant.integrations.verl.sending import hooks
from ascend_quant.integrations.wrapping import install
from ascend_quant.refit import RefitError
from ascend_quant.transfer.checksums import Receiving, sending
from ascend_quant.transfer.delta import Receiver, Sender
from ascend_quant.transfer.validate import NamedTensor

pytestmark = pytest.mark.timeout(120)

BUCKET = 256  # bytes of the first hop
FILES = {"nccl": "NCCLCheckpointEngine", "hccl": "HCCLCheckpointEngine"}


def weights() -> list[tuple[str, torch.Tensor]]:
    """Codes and scales as they may come, each number of bytes odd or of few factors."""
    torch.manual_seed(0)

    def codes(*shape: int) -> torch.Tensor:
        return torch.randint(-127, 128, shape, dtype=torch.int8)

    return [
        ("a.weight", codes(7, 3)),
        ("a.weight_scale", torch.rand(7)),
        ("norm.weight", torch.randn(5, dtype=torch.bfloat16)),
        ("b.weight", codes(9, 85)),  # three buckets, the last one not full
        ("b.weight_scale", torch.rand(9, 1)),
        ("step", torch.tensor(3.5, dtype=torch.float64)),
        ("c.weight", codes(1, 1)),
        ("c.bias", torch.randn(100)),  # two buckets
        ("c.weight_scale", torch.rand(1)),
    ]


class Wire:
    """One direction of a network, with room for all."""

    def __init__(self) -> None:
        self.said: queue.Queue[bytes] = queue.Queue()  # what is in each bucket
        self.sent: queue.Queue[torch.Tensor] = queue.Queue()  # the buckets

    def send_string(self, topic: str, flags: int) -> None: ...

    def recv_string(self) -> None: ...

    def send_pyobj(self, message: object) -> None:
        self.said.put(pickle.dumps(message))

    def recv_pyobj(self) -> object:
        return pickle.loads(self.said.get())

    def end(self, sends: bool) -> SimpleNamespace:
        """A process group, as one side of HCCL's has it."""

        def broadcast(bucket: torch.Tensor, src: int) -> None:
            if sends:
                self.sent.put(bucket.clone())
            else:
                bucket.copy_(self.sent.get())

        return SimpleNamespace(broadcast=broadcast)


@pytest.fixture(params=FILES)
def ends(request, monkeypatch):
    """A sending and a receiving engine."""
    monkeypatch.setattr(platform_manager, "_current_platform", PlatformCPU())
    monkeypatch.setattr(base, "merge_weight_chunks", base.merge_weight_chunks)  # verl's own again afterwards
    monkeypatch.setattr(CheckpointEngineRegistry, "_registry", {})
    cupy = ModuleType("cupy")
    cupy.uint8, cupy.ndarray, cupy.asarray = torch.uint8, torch.Tensor, lambda tensor: tensor
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(device, "is_torch_npu_available", lambda check_device: True)
    monkeypatch.setattr(torch, "npu", SimpleNamespace(synchronize=lambda: None), raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    file = f"verl.checkpoint_engine.{request.param}_checkpoint_engine"
    monkeypatch.delitem(sys.modules, file, raising=False)
    module, wire = importlib.import_module(file), Wire()
    sides = {sends: wire.end(sends) for sends in (True, False)}
    groups = SimpleNamespace(
        broadcast=lambda bucket, src_rank, group_name: sides[group_name].broadcast(bucket, src_rank)
    )
    monkeypatch.setattr(module, "collective", groups, raising=False)  # NCCL's
    made = []
    for rank, sends in enumerate(sides):
        engine = object.__new__(getattr(module, FILES[request.param]))
        engine.rank, engine.num_senders, engine.bucket_size, engine.topic = rank, 1, BUCKET, "buckets"
        engine.send_buf, engine.recv_buf = torch.zeros(2, BUCKET, dtype=torch.uint8)
        engine.socket, engine.group_name, engine.pyhccl = wire, sends, sides[sends]
        made.append(engine)
    yield made
    sys.modules.pop(file)


def received(ends: list, sent: Iterable[NamedTensor], on_the_way: Callable[[Wire], None] = id) -> list[NamedTensor]:
    """What the engine behind the second hop gets of it, if `on_the_way` happens in the first."""
    sender, receiver = ends
    address = f"ipc:///tmp/{uuid.uuid4().hex}.sock"
    asyncio.run(sender.send_weights(iter(sent)))
    on_the_way(sender.socket)
    found: list[NamedTensor] = []
    at_end = DrainingReceiver(address, torch.device("cpu"), use_shm=True)
    with ThreadPoolExecutor(1) as engine:
        take = engine.submit(
            at_end.receive_weights, lambda bucket, is_last: found.extend((name, one.clone()) for name, one in bucket)
        )
        passing_on = hop.BucketedWeightSender(address, bucket_size_mb=1, use_shm=True)
        asyncio.run(passing_on.async_send_weights(receiver.receive_weights()))
        take.result()
    return found


def proved(got: list[NamedTensor]) -> int:
    proof = Receiving()
    proof.take(got)
    return proof.prove()


def test_codes_scales_and_digests_arrive_as_they_were_sent(ends):
    install(hooks.WHEN_WEIGHTS_ARRIVE)
    sent = list(sending(weights()))
    got = received(ends, sent)
    assert [name for name, _ in got] == [name for name, _ in sent]
    for (_, here), (_, there) in zip(got, sent, strict=True):
        assert (here.dtype, here.shape) == (there.dtype, there.shape) and torch.equal(here, there)
    assert proved(got) == len(weights())


def test_patches_travel_in_small_buckets_and_what_is_larger_in_pieces(ends, monkeypatch):
    """What is told here is what the driver tells before both ends get ready."""
    install(hooks.WHEN_WEIGHTS_ARRIVE)
    monkeypatch.setattr(patches, "BUCKET", 1000)
    trainer, buckets = Sender(), []
    for end in ends:
        end.bucket_size = 50_000
    patches.telling(ends[0], trainer.agree)
    receiver = Receiver()
    patches.receiving(ends[1], receiver)
    now = [(name, torch.arange(40_000.0).view(400, 100).bfloat16()) for name in "ab"]
    for step, driver in enumerate((1, 1, 2, 2)):  # a driver that has begun again has everything sent whole
        sender, number, _ = getattr(ends[1], patches.HAS)()
        for end in ends:
            getattr(end, patches.AGAINST)(driver, number if sender == driver else 0)
            end.send_buf, end.recv_buf = torch.zeros(2, end.bucket_size, dtype=torch.uint8)
        now = [(name, tensor.clone()) for name, tensor in now]
        now[1][1][step, 7] = -3
        if step == 3:
            now[0] = "a", -now[0][1]  # of which a patch would be larger than itself
        got = received(ends, trainer.blobs([pair] for pair in now), lambda wire: buckets.append(wire.said.qsize()))
        receiver.settle()
        assert [name for name, _ in got] == ["a", "b"]
        assert all(torch.equal(here, there) for (_, here), (_, there) in zip(got, now, strict=True))
    assert buckets[:3] == [4, 1, 4] and buckets[3] > 80


def flip(wire: Wire) -> None:
    """A bit of the first codes."""
    wire.sent.queue[0][3] ^= 1


def lose(wire: Wire) -> None:
    """The first bucket, in which all are whole."""
    wire.said.get(), wire.sent.get()


def repeat(wire: Wire) -> None:
    """The same."""
    for what in (wire.said.queue, wire.sent.queue):
        what.appendleft(what[0])


def reorder(wire: Wire) -> None:
    """The first two pieces of what is larger than a bucket."""
    for what in (wire.said.queue, wire.sent.queue):
        what[1], what[2] = what[2], what[1]


@pytest.mark.parametrize(
    ("fault", "named"), [(flip, ["a.weight"]), (lose, ["a.weight", "a.weight_scale", "norm.weight"])]
)
def test_what_changes_in_a_bucket_is_named(ends, fault, named):
    install(hooks.WHEN_WEIGHTS_ARRIVE)
    got = received(ends, sending(weights()), fault)
    with pytest.raises(RefitError, match=line_naming(f"{len(named)} of {len(weights())}", *named)):
        proved(got)


def test_a_bucket_that_comes_twice_changes_nothing(ends):
    install(hooks.WHEN_WEIGHTS_ARRIVE)
    assert proved(received(ends, sending(weights()), repeat)) == len(weights())


def test_pieces_in_another_order_end_both_hops(ends):
    """verl's own assertion ends the first; the engine hears that nobody sends any more."""
    install(hooks.WHEN_WEIGHTS_ARRIVE)
    with pytest.raises(AssertionError, match=line_naming("b.weight")):
        received(ends, sending(weights()), reorder)
