"""What a trainer keeps through a sync to engines beside it, and when they wake up: verl's own update of two ranks."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="the update is verl's")

import torch
import torch.multiprocessing as mp
from gloo_ranks import join, leave

RANKS, TOTAL, ALLOCATED, CACHED = 2, 100, 25, 15  # bytes; a weight has 4, and 7 are made ahead
WEIGHTS, CACHE = "wakes weights", ["wakes kv_cache", "awake"]
SHARED, GROWING = "to be shared", "expandable"  # how memory is allocated from then on
AHEAD = [SHARED, WEIGHTS, "a is made", "b is made", "awake", "a leaves", "b leaves", "c is made", "c leaves"]
WITH_ROOM = [*AHEAD, *CACHE, GROWING]
ONE_AHEAD = [WEIGHTS, "a is made", "awake", "a leaves", "b is made", "b leaves", "c is made", "c leaves"]
LITTLE = [SHARED, *ONE_AHEAD, *CACHE, GROWING]
WITHOUT = [SHARED, "empties", *ONE_AHEAD, "empties", *CACHE, GROWING]


class Device:
    """What torch.cuda tells, and is told."""

    def __init__(self, free: int, events: list[str], cached: int):
        self.mem_get_info = lambda: (free, TOTAL)
        self.empty_cache = lambda: events.append("empties")
        self.memory_reserved, self.memory_allocated = lambda: ALLOCATED + cached, lambda: ALLOCATED
        self.synchronize, self.is_available = lambda: None, lambda: False


class Rollout:
    """verl's adapter of an engine, whose wake-up may fail."""

    def __init__(self, events: list[str], fails: bool = False):
        self.events, self.fails = events, fails

    async def resume(self, tags):
        self.events.append("wakes " + " and ".join(tags))
        await asyncio.sleep(0.01)
        if self.fails:
            raise RuntimeError("no memory")
        self.events.append("awake")

    async def update_weights(self, weights, **kwargs):
        for name, _ in weights:
            self.events.append(f"{name} leaves")


def made_weights(events, fails_at=None):
    for name in "abc":
        if name == fails_at:
            raise ValueError(name)
        events.append(f"{name} is made")
        yield name, torch.ones(1)


def worker_of(share, free, events, cached, bucket=0, **fails):
    """A worker of verl's, as far as its update asks for it, on a device with so much free."""
    import verl.utils.device

    device = Device(free, events, cached)
    verl.utils.device.get_torch_device = lambda: device
    from verl.workers import engine_workers

    from ascend_quant.integrations.verl.sending import sync_memory
    from ascend_quant.integrations.verl.sending.options import SendOptions
    from ascend_quant.integrations.verl.sending.sender import sends_weights
    from ascend_quant.integrations.verl.sending.weight_sender import WeightSender

    engine_workers.set_expandable_segments = lambda on: events.append(GROWING if on else SHARED)
    engine_workers.get_torch_device = verl.utils.device.get_torch_device  # what an earlier case left is dropped
    sync_memory.BESIDE = 1 if bucket else 0
    options = SendOptions(share=share, bucket=bucket)
    worker = object.__new__(sends_weights(engine_workers.ActorRolloutRefWorker, options))
    weights = made_weights(events, fails.get("weights"))
    engine = SimpleNamespace(
        get_per_tensor_param=lambda **_: (fails["export"]() if "export" in fails else weights, None),
        is_param_offload_enabled=False,
    )
    worker.actor = SimpleNamespace(sender=WeightSender(engine, options), engine=engine)
    worker.rollout = Rollout(events, fails.get("wakes", False))
    rollout = {"name": "vllm", "free_cache_engine": True, "checkpoint_engine": SimpleNamespace(backend="naive")}
    worker.config = SimpleNamespace(rollout=type("Settings", (dict,), {"__getattr__": dict.__getitem__})(rollout))
    worker.layered_summon, worker.peft_merge, worker.base_sync_done = False, False, True
    return worker


def synced(share, free, cached=CACHED, **fails):
    """What happened in a sync, and what was kept."""
    events: list[str] = []
    worker = worker_of(share, free, events, cached, **fails)
    error = None
    try:
        asyncio.run(worker.update_weights(1))
    except (RuntimeError, ValueError, ZeroDivisionError) as raised:
        error = type(raised)
    assert vars(worker.rollout).keys() == {"events", "fails"}  # its methods are the class's again
    return events, worker.actor.sender.metrics.as_metrics()["refit/bytes_kept"], error


def check_rank(rank: int, folder) -> None:
    join(rank, RANKS, folder)
    assert synced(0.5, (70, 57)[rank]) == (WITH_ROOM, CACHED, None)
    assert synced(0.5, (70, 54)[rank]) == (LITTLE, CACHED, None), "no more ahead than the engine leaves free"
    assert synced(0.5, (70, 50)[rank]) == (LITTLE, CACHED, None)
    assert synced(0.5, (70, 49)[rank]) == (WITHOUT, 0, None), "all or none"
    assert synced(None, 100) == (WITHOUT, 0, None)
    assert synced(0.5, (70, 59)[rank], bucket=2) == (LITTLE, CACHED, None), "two buckets and more stay allocated"
    assert synced(0.5, (70, 54)[rank], bucket=2) == (WITHOUT, 0, None)
    assert synced(0.5, 70, (CACHED, 8)[rank]) == (LITTLE, (CACHED, 8)[rank], None), "as much ahead as the least allows"
    # what fails is told, once the engine is awake
    assert synced(0.5, 70, weights="a") == ([SHARED, WEIGHTS, "awake"], CACHED, ValueError)
    assert synced(0.5, 70, weights="b") == ([*WITH_ROOM[:3], "awake"], CACHED, ValueError)
    assert synced(0.5, 70, weights="c") == (WITH_ROOM[:7], CACHED, ValueError)
    assert synced(0.5, 70, export=lambda: 1 / 0) == ([SHARED, WEIGHTS, "awake"], CACHED, ZeroDivisionError)
    assert synced(0.5, 70, wakes=True) == (WITH_ROOM[:4], CACHED, RuntimeError)
    leave()


def test_the_cache_is_kept_where_every_device_has_room_for_the_engine(tmp_path, monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    mp.spawn(check_rank, (tmp_path,), nprocs=RANKS)


def test_engines_elsewhere_are_sent_to_as_before(monkeypatch):
    from verl.workers.engine_workers import ActorRolloutRefWorker

    from ascend_quant.integrations.verl.sending import sync_memory as room
    from ascend_quant.integrations.verl.sending.options import SendOptions
    from ascend_quant.integrations.verl.sending.sender import sends_weights

    async def told(worker, global_steps=None, mode="auto"):
        return global_steps, mode

    monkeypatch.setattr(ActorRolloutRefWorker, "update_weights", told)
    monkeypatch.setattr(room, "find_room", lambda *_: pytest.fail("asked for"))
    worker = object.__new__(sends_weights(ActorRolloutRefWorker, SendOptions(share=0.5)))
    for backend, sleeps, mode in (("nccl", True, "auto"), ("naive", False, "auto"), ("naive", True, "nccl")):
        engine = SimpleNamespace(backend=backend)
        worker.config = SimpleNamespace(rollout=SimpleNamespace(checkpoint_engine=engine, free_cache_engine=sleeps))
        assert asyncio.run(worker.update_weights(3, mode)) == (3, mode)


def test_what_is_passed_on_waits_for_its_own_copies_alone():
    from ascend_quant.integrations.verl.sending.sync_memory import with_own_stream

    waited = []
    stream = SimpleNamespace(synchronize=lambda: waited.append("stream"))
    device = SimpleNamespace(current_stream=lambda: stream, synchronize=lambda: waited.append("device"), count=3)
    found = with_own_stream(lambda: device)()
    found.synchronize()
    assert waited == ["stream"] and found.count == 3
    cpu = SimpleNamespace(current_stream=torch.cpu.current_stream, synchronize=lambda: waited.append("cpu"))
    with_own_stream(lambda: cpu)().synchronize()
    assert waited == ["stream", "cpu"]
