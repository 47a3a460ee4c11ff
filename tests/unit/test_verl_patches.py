"""Patches under verl: who is sent what has changed, and who is sent all; what engines on the trainer's devices get."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="the verl adapter needs verl")
pytest.importorskip("vllm", reason="verl's workers need vLLM")

import torch

from ascend_quant.integrations.verl.receiving.replica import RelayWorker
from ascend_quant.integrations.verl.sending import delta_sync as patches
from ascend_quant.integrations.verl.sending.delta_sync import (
    AGAINST,
    HAS,
    NO_SYNC,
    asking_for_a_base,
    own_id,
    receiving,
)
from ascend_quant.integrations.verl.sending.options import SendOptions
from ascend_quant.integrations.verl.sending.weight_sender import WeightSender
from ascend_quant.integrations.verl.settings import Patches
from ascend_quant.refit import RefitError
from ascend_quant.transfer.checksums import SENT, Receiving
from ascend_quant.transfer.delta import NAME, Receiver, Sync, _header

HOST = torch.device("cpu")
DELTA = SendOptions(patches=Patches(HOST))


def weights(step: int) -> dict[str, torch.Tensor]:
    found = {f"{name}.weight": torch.arange(40000.0).view(400, 100).bfloat16() for name in "ab"}
    found["b.weight"][step, 7] = -3
    return found


class Ends:
    """Verl's group of workers, each with what its checkpoint engine answers."""

    def __init__(self, *answers):
        self.answers, self.world_size, self.told = answers, len(answers), []

    def execute_checkpoint_engine(self, method, *arguments):
        assert len(method) == self.world_size
        self.told.append((set(method), *map(set, arguments)))
        return [*self.answers]


@pytest.mark.parametrize(
    ("have", "against"),
    [
        ([NO_SYNC], 0),  # nothing yet
        ([("own", 3, 5), ("own", 3, 5)], 3),
        ([("own", 3, 5), ("own", 2, 5)], 0),  # one missed a sync
        ([("own", 3, 5), NO_SYNC], 0),  # one is new, or lost what it had
        ([("own", 3, 5), ("own", 3, 6)], 0),  # one missed the first syncs of a trainer made anew
        ([(7, 3, 5), (7, 3, 5)], 0),  # of a trainer before this one
    ],
)
def test_a_base_is_what_all_engines_have_of_this_trainer(have, against, monkeypatch):
    monkeypatch.setattr(patches.ray, "get", lambda found: found)
    engines = Ends(*(Sync(own_id() if sender == "own" else sender, *rest) for sender, *rest in have))
    manager = SimpleNamespace(actor_wg=Ends(None, None))
    asking_for_a_base(lambda self, rollout: rollout.told.append("get ready"))(manager, engines)
    told = ({AGAINST}, {own_id()}, {against})
    assert manager.actor_wg.told == [told] and engines.told == [({HAS},), told, "get ready"]


class Transport:
    """A checkpoint engine that keeps what is sent."""

    def __init__(self):
        self.sent = []

    async def send_weights(self, weights):
        self.sent = [*weights]

    async def receive_weights(self, global_steps=None):
        for pair in self.sent:
            yield pair


class Adapter:
    """verl's way to an engine beside it, which proves what it has taken and may fail of itself."""

    def __init__(self, proves: bool = True):
        self.proves, self.fails = proves, False

    async def update_weights(self, weights, **options):
        proof, self.found = Receiving(self.proves), {}
        async for name, tensor in weights:
            self.found.update((one, found.clone()) for one, found in proof.take([(name, tensor)]))
        if self.fails:
            raise RuntimeError("the engine is out of memory")
        self.proved = proof.prove()


def passing_on(proves: bool = True) -> RelayWorker:
    """Beside an engine, with a transport."""
    made = object.__new__(RelayWorker)
    made.checkpoint_engine, made.server_adapter, made.receiver = Transport(), Adapter(proves), Receiver(HOST)
    receiving(made.checkpoint_engine, made.receiver)
    return made


def synced(trainer, beside: RelayWorker, step: int, on_the_way=lambda sent: None) -> int:
    """How many groups of a sync travelled as patches; the engine has the weights, or there is an error."""
    engine = beside.checkpoint_engine
    has = getattr(engine, HAS)()
    trainer.delta.against(own_id(), has.number if has.sender == own_id() else 0)
    sent = [(name, tensor.clone()) for name, tensor in trainer.as_sent(weights(step).items(), None)]
    blobs = [(name, tensor) for name, tensor in sent if name != SENT]
    assert [name for name, _ in blobs] == [f"{NAME}.{i}" for i in range(3)]
    patched = sum(bool(_header(name, blob).base) for name, blob in blobs)
    on_the_way(sent)
    asyncio.run(engine.send_weights(sent))
    asyncio.run(beside.update_weights(global_steps=step))
    found = beside.server_adapter.found
    assert all(torch.equal(found[name], tensor) for name, tensor in weights(step).items())
    return patched


def test_what_arrives_is_proved_and_later_syncs_send_little():
    beside, trainer, sizes = passing_on(), WeightSender(None, DELTA), []
    for step in range(3):
        assert synced(trainer, beside, step) == (2 if step else 0)
        assert beside.server_adapter.proved == 2
        assert getattr(beside.checkpoint_engine, HAS)()[:2] == (own_id(), step + 1)
        sizes.append(trainer.metrics.as_metrics()["refit/bytes_sent"])
    assert sizes[0] > 160_000 and max(sizes[1:]) < 400


def flip(i: int, at: int):
    """A bit of what travels."""

    def on_the_way(sent) -> None:
        sent[i][1][at] ^= 4

    return on_the_way


def lose_the_end(sent) -> None:
    del sent[2]


@pytest.mark.parametrize(
    ("when", "fault"),
    [
        (0, flip(0, -1)),  # a group that travels whole
        (2, flip(1, -1)),  # a value of a patch
        (2, flip(1, -2)),  # its place
        (2, flip(-1, -20)),  # the digests
        (2, lose_the_end),  # the last blob, and the digests after it prove the rest
        (2, "the engine fails"),
    ],
)
def test_a_sync_that_the_engine_has_not_taken_is_none_to_patch(when, fault):
    """Its base may have a wrong byte, on which no later patch would fall: the next sync is sent whole, and heals."""
    beside, trainer = passing_on(), WeightSender(None, DELTA)
    for step in range(when):
        synced(trainer, beside, step)
    if callable(fault):
        on_the_way = fault
    else:
        beside.server_adapter.fails, on_the_way = True, id
    with pytest.raises((RefitError, RuntimeError)) if fault is not lose_the_end else nullcontext():
        synced(trainer, beside, when, on_the_way)
    assert getattr(beside.checkpoint_engine, HAS)() == NO_SYNC
    beside.server_adapter.fails = False
    assert [synced(trainer, beside, step) for step in range(when + 1, when + 4)] == [0, 2, 2]


def test_without_a_proof_a_trainer_made_anew_never_patches_a_former_ones_base():
    """Both count their syncs from 1 under one driver; the second one's first sync never came to this engine."""
    beside, first = passing_on(proves=False), WeightSender(None, replace(DELTA, proves=False))
    second = WeightSender(None, replace(DELTA, proves=False))
    synced(first, beside, 0)
    second.delta.against(own_id(), 0)
    list(second.as_sent(weights(9).items(), None))
    with pytest.raises(RefitError, match=f"{NAME}.0"):
        synced(second, beside, 1)
    assert [synced(second, beside, step) for step in (2, 3)] == [0, 2]


def test_engines_on_the_trainers_devices_get_the_weights_themselves():
    trainer = WeightSender(None, DELTA)
    for _ in range(2):
        assert [name for name, _ in trainer.as_sent(weights(0).items(), None)] == [*weights(0), SENT]
        trainer.delta.against(own_id(), 0)  # and then one elsewhere
        assert next(iter(dict(trainer.as_sent(weights(0).items(), None)))) == f"{NAME}.0"
    plain = WeightSender(None, SendOptions())
    assert [name for name, _ in plain.as_sent(weights(0).items(), None)] == [*weights(0), SENT]
