"""verl's actor with fake-quantized layers; critic and reference model are unchanged.

The layers are changed after the training engine has built and wrapped its model and created the optimizer. Parameters
keep their names, so checkpoints and weight syncs are unchanged. verl 0.9.1 has its own hook before the wrapping
(`FSDPEngine._apply_qat`, `apply_qat_to_modules` for Megatron), which does not fit: it supports only NVFP4, replaces
modules, and sends packed NVFP4 weights under other names, while our rollout quantizes the weights that it receives.
"""

import functools
import logging
from typing import Any

import ray
import torch
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from ascend_quant.integrations.verl.compat import plain_class
from ascend_quant.integrations.verl.training.exact import worker as exact_worker
from ascend_quant.integrations.verl.training.exact.trainer import ExactTrainer
from ascend_quant.integrations.verl.training.qat import FakeQuantization
from ascend_quant.qat import Applied

logger = logging.getLogger(__name__)


def with_fake_quantization(trainer_class: type, wanted: FakeQuantization) -> type:
    """Subclass verl's trainer class, or ours, so that its actors have fake-quantized layers."""
    kinds = () if wanted.ranks is None else (ExactTrainer,)

    class QatTrainer(*kinds, trainer_class):
        def _init_resource_pool_mgr(self) -> None:
            super()._init_resource_pool_mgr()  # verl assigns worker classes to roles here
            fake_quantize_actors(self.role_worker_mapping, wanted)

    return QatTrainer


def fake_quantize_actors(role_worker_mapping: dict[Any, Any], wanted: FakeQuantization) -> None:
    """Give verl's actor workers fake-quantized layers, in each of their roles; changes the mapping in place."""
    for role, actor_class in role_worker_mapping.items():
        worker_class = plain_class(actor_class)
        if issubclass(worker_class, ActorRolloutRefWorker):
            role_worker_mapping[role] = ray.remote(fake_quantizing(worker_class, wanted))


def fake_quantizing(worker_class: type, wanted: FakeQuantization) -> type:
    """Subclass verl's worker class of an actor so that its training worker has fake-quantized layers."""
    kinds = () if wanted.ranks is None else (exact_worker.ExactRolloutWorker,)

    class QatActorWorker(*kinds, worker_class):
        @staticmethod
        def actor_worker_cls(*args: Any, **kwargs: Any) -> TrainingWorker:
            return fake_quantized(worker_class.actor_worker_cls(*args, **kwargs), wanted)

    return QatActorWorker


def fake_quantized(worker: TrainingWorker, wanted: FakeQuantization) -> TrainingWorker:
    """Return the training worker, whose model gets fake-quantized layers once its engine has built it."""
    initialize = worker.engine.initialize

    @functools.wraps(initialize)
    def initialize_and_apply() -> None:
        initialize()
        applied = apply(worker.engine, wanted)
        worker.unquantized = applied.in_engine  # the engine compares it with its own, see weight_sender.py
        if torch.distributed.get_rank() == 0:
            # a warning because verl's workers suppress lower levels
            logger.warning("the actor: %s", applied)

    worker.engine.initialize = initialize_and_apply
    if wanted.ranks is not None:
        worker.counter = exact_worker.Counter(worker.engine)
    return worker


def apply(engine: Any, wanted: FakeQuantization) -> Applied | exact_worker.Applied:
    """Apply fake quantization to the model of a training engine; for Megatron, to the model chunks on this rank."""
    if wanted.ranks is not None:
        return exact_worker.apply(engine, wanted.ranks)
    module = engine.module
    if isinstance(module, list):
        from ascend_quant.integrations.megatron import apply_fake_quantization
    else:
        from ascend_quant.qat import apply_fake_quantization
    return apply_fake_quantization(module, wanted.scheme, wanted.ignore)
