"""The trainer's side of the proof: which of verl's weight syncs carry digests, and which worker sends them."""

import pytest

pytest.importorskip("verl", reason="the verl adapter needs verl")
pytest.importorskip("vllm", reason="verl's workers need vLLM")

import torch
from verl.single_controller.base.decorator import MAGIC_ATTR
from verl.workers.engine_workers import ActorRolloutRefWorker

from ascend_quant.integrations.verl import sender
from ascend_quant.integrations.verl.replica import RefitHttpServer
from ascend_quant.proof import SENT, Receiving

WEIGHTS = {"a": torch.ones(2, 3), "b": torch.ones(4)}
LORA = {"r": 8}


def engine(peft_config):
    """verl's `get_per_tensor_param` of an engine without LoRA, or with."""
    return lambda layered_summon=False, base_sync_done=False: (iter(WEIGHTS.items()), peft_config)


@pytest.mark.parametrize(
    ("peft_config", "asked", "proved"),
    [
        (None, {}, True),  # for a distant rollout
        (None, {"layered_summon": False, "base_sync_done": True}, True),  # for a colocated one
        (LORA, {"base_sync_done": False}, True),  # LoRA: the base model
        (LORA, {"base_sync_done": True}, False),  # LoRA: the adapters alone
    ],
)
def test_whole_models_are_proved_and_adapters_are_not(peft_config, asked, proved):
    weights, config = sender.with_digests(engine(peft_config))(**asked)
    received = list(weights)
    assert config is peft_config
    assert [name for name, _ in received] == [*WEIGHTS, SENT][: 3 if proved else 2]
    if proved:
        receiving = Receiving()
        receiving.take(received)
        assert receiving.prove() == 2


def test_the_worker_is_verls_own_in_every_other_way():
    worker = sender.sends_digests(ActorRolloutRefWorker)
    assert issubclass(worker, ActorRolloutRefWorker) and worker.__name__ == "ProvingActorRolloutRefWorker"
    assert worker.ref_worker_cls is ActorRolloutRefWorker.ref_worker_cls
    assert worker.actor_worker_cls is sender.ProvingTrainingWorker
    assert issubclass(sender.ProvingTrainingWorker, ActorRolloutRefWorker.actor_worker_cls)
    assert hasattr(worker.init_model, MAGIC_ATTR)  # still offered to verl's controller


@pytest.mark.parametrize(("proof", "extension"), [(True, "RefitWorkerExtension"), (False, "UnprovedWorkerExtension")])
def test_the_engine_expects_what_the_trainer_sends(proof, extension):
    from ascend_quant.integrations.verl import worker

    server = object.__new__(RefitHttpServer)
    server.config = {"engine_kwargs": {"ascend_quant": {"proof": proof}}}
    assert server._get_worker_extension_cls() == f"{worker.__name__}.{extension}"
    assert getattr(worker, extension).refit_wants_proof is proof
