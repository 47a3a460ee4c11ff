"""Patches under verl: who is sent what has changed, and who is sent all; what engines on the trainer's devices get."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="the verl adapter needs verl")
pytest.importorskip("vllm", reason="verl's workers need vLLM")

import torch
from verl.workers.engine_workers import ActorRolloutRefWorker

from ascend_quant.integrations.verl import patches, sender
from ascend_quant.integrations.verl.patches import AGAINST, HAS, Patching, asking_for_a_base, own_id, receiving
from ascend_quant.integrations.verl.sent_figures import SentFigures
from ascend_quant.integrations.verl.settings import Patches
from ascend_quant.refit.delta import NAME, Receiver, Sender
from ascend_quant.refit.proof import SENT, Receiving

HOST = torch.device("cpu")


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
        ([(0, 0)], 0),  # nothing yet
        ([("own", 3), ("own", 3)], 3),
        ([("own", 3), ("own", 2)], 0),  # one missed a sync
        ([("own", 3), (0, 0)], 0),  # one is new, or lost what it had
        ([(7, 3), (7, 3)], 0),  # of a trainer before this one
    ],
)
def test_a_base_is_what_all_engines_have_of_this_trainer(have, against, monkeypatch):
    monkeypatch.setattr(patches.ray, "get", lambda found: found)
    engines = Ends(*((own_id() if sender == "own" else sender, number) for sender, number in have))
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


def arrived(engine: Transport) -> list[tuple[str, torch.Tensor]]:
    async def all_of_it():
        return [(name, tensor.clone()) async for name, tensor in engine.receive_weights(global_steps=1)]

    return asyncio.run(all_of_it())


def worker(**options) -> sender.SendingTrainingWorker:
    made = object.__new__(sender.sends_weights(ActorRolloutRefWorker, **options).actor_worker_cls)
    vars(made).update(figures=SentFigures(), engine=None)
    made.patching = Patching(Sender(made.patches.base_on)) if made.patches is not None else None
    return made


def test_what_arrives_is_proved_and_later_syncs_send_little():
    engine, trainer, sizes = Transport(), worker(patches=Patches(HOST)), []
    receiving(engine, Receiver(HOST))
    for step in range(3):
        has = getattr(engine, HAS)()
        trainer.patching.against(own_id(), has[1] if has[0] == own_id() else 0)
        sent = list(trainer.as_sent(weights(step).items()))
        assert [name.rpartition(".")[0] for name, _ in sent[:-1]] == [NAME] * 3 and sent[-1][0] == SENT
        proof = Receiving()
        asyncio.run(engine.send_weights(sent))
        found = dict(proof.take(arrived(engine)))
        assert proof.prove() == 2
        assert all(torch.equal(found[name], tensor) for name, tensor in weights(step).items())
        assert getattr(engine, HAS)() == (own_id(), step + 1)
        sizes.append(trainer.figures.as_metrics()["refit/bytes_sent"])
    assert sizes[0] > 160_000 and max(sizes[1:]) < 400


def test_engines_on_the_trainers_devices_get_the_weights_themselves():
    trainer = worker(patches=Patches(HOST))
    for _ in range(2):
        assert [name for name, _ in trainer.as_sent(weights(0).items())] == [*weights(0), SENT]
        trainer.patching.against(own_id(), 0)  # and then one elsewhere
        assert next(iter(dict(trainer.as_sent(weights(0).items())))) == f"{NAME}.0"
    assert [name for name, _ in worker().as_sent(weights(0).items())] == [*weights(0), SENT]
