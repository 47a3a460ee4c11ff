"""vllm-ascend's own worker around a refit: its sleep and wake-up, and the weights that it takes from a trainer."""

import importlib
from inspect import signature
from types import SimpleNamespace

import pytest
import torch
from vllm.v1.worker import gpu_worker

from ascend_quant.engine.layout import layouts_of
from ascend_quant.integrations import vllm as plugin
from ascend_quant.refit import RefitError
from npu_host import absent, checkpoint, memory, models, vllm_engine, whole_model

pytestmark = pytest.mark.each_version

ENGINES = {"hccl_engine": "HCCLWeightTransferEngine", "npu_ipc_engine": "NPUIPCWeightTransferEngine"}
KINDS = [(models.DENSE, True, False), (models.DENSE, False, False), (models.MOE, True, False)]
THOROUGH = [(models.DENSE, True, True), (models.MOE, True, True)]


class Pool:
    """What CaMemAllocator does to a model's weights: their memory is gone in between, their addresses stay."""

    def __init__(self, model):
        layouts = [one for layer in model.modules() for one in layouts_of(layer).values()]
        tensors = [*model.parameters(), *(tensor for one in layouts for tensor in (one.scale, *one.copies))]
        self.memory, self.saved = [memory.storage(tensor) for tensor in tensors], []

    def sleep(self, offload_tags: tuple[str, ...]) -> None:
        assert offload_tags == ("weights",)
        self.saved = [one.clone() for one in self.memory]
        for one in self.memory:
            one.fill_(0x55)

    def wake_up(self, tags: list[str] | None) -> None:
        if tags is not None and "weights" not in tags:
            return
        for one, saved in zip(self.memory, self.saved, strict=True):
            one.copy_(saved)


@pytest.fixture
def worker_module(monkeypatch):
    """Its module, with as much free memory as it likes, without CANN's Python package and the runner of models."""
    importlib.import_module("vllm_ascend.worker")
    absent.stand_in("acl.rt")
    absent.stand_in("vllm_ascend.worker.model_runner_v1")
    monkeypatch.setattr(torch.npu, "mem_get_info", lambda: (2**30, 2**31))
    monkeypatch.setenv("VLLM_ASCEND_ENABLE_NZ", "0")
    return importlib.import_module("vllm_ascend.worker.worker")


def thorough_sleep() -> dict:
    """vllm-ascend's settings for a sleep that releases HCCL's groups and captured graphs as well."""
    if hasattr(importlib.import_module("vllm_ascend.ascend_config"), "RlConfig"):  # since 0.27
        return {"rl_config": {"enabled": True, "sleep_mode_extra_cleanup": True}}
    return {"enable_sleep_mode_extra_cleanup": True}


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0]}-{'nz' if kind[1] else 'nd'}")
def running(request, worker_module, monkeypatch, tmp_path):
    """Whether it has experts, and a worker whose model has had one refit."""
    architecture, nz, thorough = request.param
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "0")  # which rl_config sets
    settings = {"weight_nz_mode": 0, **(thorough_sleep() if thorough else {})}
    with whole_model.built(vllm_engine.running, tmp_path, architecture, nz, settings=settings) as (moe, model, config):
        worker = object.__new__(worker_module.NPUWorker)
        worker.model_runner = SimpleNamespace(model=model, reset_lora_state=lambda: None)
        worker.vllm_config, worker.model_config, worker.device = config, config.model_config, torch.device("npu:0")
        worker._sleep_saved_buffers, worker._weight_update_active = {}, False
        if thorough:
            worker.sleep_wakeup_manager = worker_module.SleepWakeupManager(config, worker, lambda: worker.model_runner)
        pool = Pool(model)
        monkeypatch.setattr(worker_module.CaMemAllocator, "get_instance", lambda: pool)
        whole_model.load(model, checkpoint.state_of(moe, 0))
        yield moe, worker


def holds(moe: bool, model, seed: int) -> None:
    """The oracle's bytes of a checkpoint, as the receipt says."""
    refit, held = plugin.refit_of(model), checkpoint.held(moe, model)
    assert refit.why_not_servable() is None and refit.digest() == refit.last_receipt.digest
    for name, pair in checkpoint.expected(moe, checkpoint.state_of(moe, seed)).items():
        assert all(map(torch.equal, held[name], pair)), name


def test_sleep_and_wake_up_keep_every_byte_and_refits_go_on(running):
    moe, worker = running
    model = worker.model_runner.model
    refit, before = plugin.refit_of(model), whole_model.tensors_of(model)
    for seed in (1, 2):
        worker.sleep(1)
        assert "sleep" in refit.why_not_servable()
        with pytest.raises(RefitError, match="sleep"):
            whole_model.load(model, checkpoint.state_of(moe, seed))
        worker.wake_up(["weights"])
        holds(moe, model, seed - 1)
        whole_model.load(model, checkpoint.state_of(moe, seed))
        holds(moe, model, seed)
        assert whole_model.tensors_of(model) == before
    with pytest.raises(RefitError, match="sleep level 2"):
        worker.sleep(2)


@pytest.mark.parametrize("running", THOROUGH, indirect=True, ids=lambda kind: kind[0])
def test_a_sleep_that_releases_graphs_and_groups_captures_graphs_of_the_last_refit(running):
    """As in verl's sync: weights awake, a refit, then the cache, with which vllm-ascend captures its graphs again."""
    moe, worker = running
    runner, events = worker.model_runner, []
    before = whole_model.tensors_of(runner.model)
    runner.use_aclgraph, runner.post_kv_cache_wake_up = True, lambda: None
    groups = worker.sleep_wakeup_manager.hccl  # HCCL is not on host memory
    groups.sleep, groups.wakeup = lambda: events.append("groups go"), lambda: events.append("groups come")
    for seed in (1, 2):
        worker.sleep(1)
        worker.wake_up(["weights"])
        assert events == ["groups go", "groups come"]
        whole_model.load(runner.model, checkpoint.state_of(moe, seed))
        runner.capture_model = lambda seed=seed: events.append("graphs") or holds(moe, runner.model, seed)
        worker.wake_up(["kv_cache"])
        assert events == ["groups go", "groups come", "groups come", "graphs"]
        assert whole_model.tensors_of(runner.model) == before
        events.clear()


@pytest.mark.parametrize("transfer", ENGINES)
def test_weights_from_a_trainer_are_a_refit(running, transfer):
    """Layerwise reload, which worker or engine ask for (0.27 by NPU IPC: for nothing), would replace parameters."""
    moe, worker = running
    model = worker.model_runner.model
    refit, before = plugin.refit_of(model), whole_model.tensors_of(model)
    why = "vllm-ascend 0.23's transfer by NPU IPC wants ray; there the worker itself asks for the reload"
    module = pytest.importorskip(f"vllm_ascend.distributed.weight_transfer.{transfer}", reason=why)
    engine = object.__new__(getattr(module, ENGINES[transfer]))
    engine.model, engine.model_config = model, worker.model_config
    worker.weight_transfer_engine = engine
    worker.start_weight_update()
    pairs = [(name, tensor.npu()) for name, tensor in checkpoint.state_of(moe, 3).items()]
    for part in (pairs[5:], pairs[:5]):
        model.load_weights(part)
    worker.finish_weight_update()
    holds(moe, model, 3)
    assert whole_model.tensors_of(model) == before and refit.last_receipt.tensors == len(pairs)


def test_weights_in_kernel_format_are_refused(running):
    """vLLM would copy them into parameters, past the refit: by its own worker's method as by vllm-ascend's."""
    moe, worker = running
    for kind in (type(worker), gpu_worker.Worker):
        if "is_checkpoint_format" in signature(kind.start_weight_update).parameters:
            with pytest.raises(RefitError, match="is_checkpoint_format=False"):
                kind.start_weight_update(worker, is_checkpoint_format=False)
    holds(moe, worker.model_runner.model, 0)
