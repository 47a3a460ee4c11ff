"""verl's trainers whose engines have devices of their own: where ours take their places, and what they report when."""

import asyncio
import logging
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="the verl adapter needs verl")
pytest.importorskip("vllm", reason="verl's rollouts need vLLM")

import ray
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from verl.experimental.separation.utils import create_role_worker_mapping
from verl.trainer.ppo.v1 import trainer_separate_async
from verl.workers.engine_workers import TrainingWorker

from ascend_quant.integrations.verl import cpu_settings, hooks, main_fully_async, main_one_step_off
from ascend_quant.integrations.verl.asynchronous import experimental, fully_async, one_step_off
from ascend_quant.integrations.verl.asynchronous.experimental import RefitExperimentalTrainer
from ascend_quant.integrations.verl.compat import actor_options, plain_class
from ascend_quant.integrations.verl.sending.options import SendOptions
from ascend_quant.integrations.verl.sending.sender import SendsWeights
from ascend_quant.integrations.verl.training.qat import FakeQuantization
from ascend_quant.integrations.wrapping import install
from ascend_quant.refit import RefitError

REPORT = {"refit/verified": 3}


def test_verls_trainer_can_say_that_no_engine_shares_its_devices(monkeypatch, caplog):
    logger = trainer_separate_async.logger
    monkeypatch.setattr(logger, "info", logging.Logger.info.__get__(logger))  # verl's own again afterwards
    with pytest.raises(TypeError, match="flush"):
        logger.info("served by %d replicas", 2, flush=True)
    install(hooks.WITH_ROLLOUTS_APART)
    with caplog.at_level(logging.INFO, logger.name):
        logger.info("served by %d replicas", 3, flush=True)
    assert [record.getMessage().split()[-2] for record in caplog.records] == ["3"]


@pytest.mark.parametrize(
    ("entry", "name", "more"),
    [
        (main_one_step_off, "one_step_off_ppo_trainer", [main_one_step_off.OTHER_SETTINGS]),
        (main_fully_async, "fully_async_ppo_trainer", []),
    ],
)
def test_the_entries_find_verls_settings(entry, name, more):
    with initialize_config_dir(entry.SETTINGS, version_base=None):
        config = compose(name, overrides=more, return_hydra_config=bool(more))
    assert config.rollout.nnodes >= 1 and config.actor_rollout_ref.rollout.checkpoint_engine.backend == "nccl"
    asked = [*cpu_settings._wanted(config, True), *cpu_settings._wanted_of_ray(config)]
    devices = (
        config.trainer.nnodes * config.trainer.n_gpus_per_node + config.rollout.nnodes * config.rollout.n_gpus_per_node
    )
    assert f"+ray_kwargs.ray_init.num_gpus={devices}" in asked
    assert "separate_async" in config.trainer.v1  # what lies in the folder that the first has to be told of


def settings() -> DictConfig:
    transfer = {"backend": "nccl", "update_weights_bucket_megabytes": 1}
    options = {"ascend_quant": {"proof": False}}
    rollout = {"dtype": "bfloat16", "engine_kwargs": options, "checkpoint_engine": transfer}
    actor = {"rollout": rollout, "model": {}, "actor": {"strategy": "fsdp2"}}
    return OmegaConf.create({"actor_rollout_ref": actor, "trainer": {"device": "cpu"}, "algorithm": {}})


class TaskRunner:
    pass


class Ours(TaskRunner):
    pass


@pytest.mark.parametrize(
    ("quantization", "scheme", "ranks", "stands"),
    [
        ("ascend_quant", None, None, Ours),
        ("ascend_quant", "int4_g32", None, Ours),
        ("ascend_quant", "int8", 1, None),  # its samples would be of older weights
        (None, None, None, TaskRunner),
        (None, "int4_g32", None, None),
    ],
)
def test_a_main_gets_our_task_runner_where_refits_are_asked_for(quantization, scheme, ranks, stands, monkeypatch):
    """And fake quantization is never dropped without a word, nor is an exact actor asked for in vain."""
    seen = []
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # else the process ends
    main = SimpleNamespace(TaskRunner=TaskRunner, main=SimpleNamespace())
    main.main.__wrapped__ = lambda config: seen.append(main.TaskRunner)
    monkeypatch.setattr(experimental, "auto_set_device", lambda *_: None)
    for settings_of in (experimental.attention_settings, experimental.cpu_settings, experimental.inputs):
        monkeypatch.setattr(settings_of, "check", lambda *_, **__: None)
    for name in ("need_critic", "need_reference_policy"):
        monkeypatch.setattr(experimental, name, lambda config: False)
    monkeypatch.setattr(experimental.settings, "check", lambda config: None)
    monkeypatch.setattr(experimental.qat, "wanted", lambda config: scheme and FakeQuantization(scheme, ranks=ranks))
    config = settings()
    config.actor_rollout_ref.rollout.quantization = quantization
    with pytest.raises(RefitError, match="qat") if stands is None else nullcontext():
        experimental.run(config, main, "TaskRunner", Ours)
    assert seen == ([] if stands is None else [stands])


class Verls:
    """As much of a trainer of verl's as extends here."""

    def __init__(self, config, role_worker_mapping):
        self.config, self.role_worker_mapping = config, role_worker_mapping


class Trainer(RefitExperimentalTrainer, Verls):
    pass


def test_the_actor_sends_and_the_critic_stays(monkeypatch):
    monkeypatch.setattr("verl.trainer.ppo.utils.need_reference_policy", lambda config: False)
    monkeypatch.setattr("verl.experimental.separation.utils.need_reference_policy", lambda config: False)
    config = settings()
    mapping, _ = create_role_worker_mapping(config)
    workers = [plain_class(kind) for kind in Trainer(config, mapping).role_worker_mapping.values()]
    sending = [kind for kind in workers if issubclass(kind, SendsWeights)]
    assert len(sending) == 1
    options = vars(sending[0])["actor_worker_cls"].__func__.keywords["options"]
    assert options == SendOptions(proves=False, rounds=True, bucket=1 << 20)
    assert [kind for kind in workers if kind not in sending] == [TrainingWorker]


@pytest.mark.parametrize("synced", [True, False])
def test_one_step_off_reports_a_sync_among_its_step(synced, monkeypatch):
    trainer = object.__new__(one_step_off.RefitOneStepTrainer)
    trainer.metrics, trainer.timing_raw, trainer.actor_rollout_wg = {}, {}, "workers"
    trainer.llm_server_manager = SimpleNamespace(get_replicas=lambda: ["replica"])
    trainer.has_agreed, trainer.sync_reports = True, SimpleNamespace(of_last=lambda *who: {**REPORT, "of": who})

    def sync(self):
        if synced:  # not while only a critic warms up
            self.timing_raw["update_weights"] = 1.0

    monkeypatch.setattr(one_step_off.OneStepOffRayTrainer, "_fit_update_weights", sync)
    trainer._fit_update_weights()
    assert trainer.metrics == ({**REPORT, "of": (["replica"], "workers")} if synced else {})


@pytest.mark.parametrize(("synced", "only_hybrid"), [({}, False), (None, False), ({}, True)])
def test_fully_async_logs_each_sync_under_its_version(synced, only_hybrid, monkeypatch):
    trainer, logged = object.__new__(fully_async.RefitFullyAsyncTrainer), []
    trainer.checkpoint_manager, trainer.actor_rollout_wg = SimpleNamespace(replicas=["replica"]), "workers"
    trainer.current_param_version, trainer.only_hybrid = 7, only_hybrid
    trainer.logger = SimpleNamespace(log=lambda data, step: logged.append((step, data)))
    trainer.has_agreed, trainer.sync_reports = True, SimpleNamespace(of_last=lambda *who: {**REPORT, "of": who})

    async def sync(self):
        return synced

    monkeypatch.setattr(plain_class(fully_async.main.FullyAsyncTrainer), "_fit_update_weights", sync)
    assert asyncio.run(trainer._fit_update_weights()) is synced
    expected = [(7, {**REPORT, "of": (["replica"], "workers")})]
    assert logged == (expected if synced is not None and not only_hybrid else [])


def test_fully_async_creates_ours_with_the_resources_of_verls(monkeypatch):
    main, created = fully_async.main, {}
    base = plain_class(main.FullyAsyncTaskRunner)
    for name, method in ((fully_async.TRAINER, "_create_trainer"), (fully_async.ROLLOUTER, "_create_rollouter")):
        own = getattr(main, name)
        monkeypatch.setattr(main, name, own)  # verl's again afterwards
        monkeypatch.setattr(base, method, lambda self, config, name=name: created.update({name: getattr(main, name)}))
        getattr(object.__new__(fully_async.RefitFullyAsyncTaskRunner), method)(None)
        assert actor_options(created[name]) == actor_options(own) and created[name] is not own
        assert issubclass(plain_class(created[name]), plain_class(own))
    assert actor_options(fully_async.RefitRollouter) is None and isinstance(created[name], ray.actor.ActorClass)
