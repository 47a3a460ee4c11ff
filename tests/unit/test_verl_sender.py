"""The trainer's side of a weight sync: which of verl's syncs carry digests, what is rounded, which worker sends it."""

import asyncio
import pickle
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="the verl adapter needs verl")
pytest.importorskip("vllm", reason="verl's workers need vLLM")

import torch
from omegaconf import DictConfig, OmegaConf
from ray import cloudpickle
from verl.single_controller.base.decorator import MAGIC_ATTR
from verl.workers.engine_workers import ActorRolloutRefWorker

from ascend_quant.integrations.verl import compat
from ascend_quant.integrations.verl.receiving import replica
from ascend_quant.integrations.verl.receiving.replica import RefitHttpServer
from ascend_quant.integrations.verl.sending import sender, weight_sender
from ascend_quant.integrations.verl.sending.delta_sync import AGAINST
from ascend_quant.integrations.verl.sending.options import SendOptions
from ascend_quant.integrations.verl.sending.sync_metrics import slowest_of
from ascend_quant.integrations.verl.sending.weight_sender import WeightSender
from ascend_quant.integrations.verl.settings import Patches
from ascend_quant.kv_cache.scales import FP8
from ascend_quant.refit import RefitError
from ascend_quant.schemes import SCHEMES
from ascend_quant.schemes.layer_names import Unquantized
from ascend_quant.transfer import prequantized
from ascend_quant.transfer.checksums import SENT, Receiving, sending

WEIGHTS = {"a": torch.ones(2, 3), "b": torch.ones(4)}
LORA = {"r": 8}
HOST = torch.device("cpu")


def rollout(backend: str = "naive", **settings) -> DictConfig:
    """verl's settings, with buckets of 3 MiB."""
    transfer = {"update_weights_bucket_megabytes": 3, "backend": backend}
    return OmegaConf.create({"checkpoint_engine": transfer, **settings})


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
    weights, config = sender.with_weights(engine(peft_config), sending)(**asked)
    received = list(weights)
    assert config is peft_config
    assert [name for name, _ in received] == [*WEIGHTS, SENT][: 3 if proved else 2]
    if proved:
        receiving = Receiving()
        receiving.take(received)
        assert receiving.prove() == 2


def test_what_fake_quantization_leaves_alone_travels_with_the_digests():
    told = Unquantized("int8", ("layers.0.mlp.experts",))
    received = list(WeightSender(None, SendOptions()).as_sent(WEIGHTS.items(), told))
    for here, refused in ((told, False), (Unquantized("int8"), True)):
        receiving = Receiving(unquantized=here)
        receiving.take(received)
        with pytest.raises(RefitError, match=told.names[0]) if refused else nullcontext():
            receiving.prove()


def test_the_worker_is_verls_own_in_every_other_way():
    worker = sender.sends_weights(ActorRolloutRefWorker, SendOptions())
    assert issubclass(worker, ActorRolloutRefWorker)
    assert worker.ref_worker_cls is ActorRolloutRefWorker.ref_worker_cls
    assert issubclass(sender.SendingTrainingWorker, ActorRolloutRefWorker.actor_worker_cls)
    assert hasattr(worker.init_model, MAGIC_ATTR)  # still offered to verl's controller


def test_a_training_worker_in_another_process_gets_the_runs_options(monkeypatch):
    options = SendOptions(proves=False, rounds=True, form=FP8, patches=Patches(None), share=0.5, bucket=7)
    worker = pickle.loads(cloudpickle.dumps(sender.sends_weights(ActorRolloutRefWorker, options)))
    found = []
    monkeypatch.setattr(sender.SendingTrainingWorker, "__init__", lambda self, **given: found.append(given))
    object.__new__(worker).actor_worker_cls(config="verl's")  # as verl's init_model calls it
    assert found == [{"config": "verl's", "options": options}]


@pytest.mark.parametrize(
    ("dtype", "device", "backend", "asked", "options"),
    [
        ("bfloat16", "cpu", "naive", {}, SendOptions(rounds=True, bucket=3 << 20, keeps_weights=True)),
        ("float16", "cuda", "naive", {"memory": "release"}, SendOptions(bucket=3 << 20)),
        ("float32", "cuda", "nccl", {"proof": False}, SendOptions(proves=False, share=0.5, bucket=3 << 20)),
        (None, "cuda", "nccl", {"send": "delta"}, SendOptions(patches=Patches(HOST, True), share=0.5, bucket=3 << 20)),
    ],
)
def test_the_options_of_a_runs_settings(dtype, device, backend, asked, options):
    settings = rollout(backend, dtype=dtype, gpu_memory_utilization=0.5, engine_kwargs={"ascend_quant": asked})
    assert SendOptions.of(settings, device) == options
    fp8 = {"vllm": {"kv_cache_dtype": "fp8"}, "ascend_quant": asked}
    with_scales = rollout(backend, dtype=dtype, gpu_memory_utilization=0.5, engine_kwargs=fp8)
    assert SendOptions.of(with_scales, device) == replace(options, form=FP8)


@pytest.mark.parametrize("proves", [True, False])
def test_weights_are_rounded_before_their_digests_for_bf16_engines_alone(proves):
    matrices = {f"{name}.weight": torch.full((2, 2), 1 + 2**-9) for name in "ab"}
    for dtype, rounds in (("bfloat16", True), ("float16", False), ("float32", False), (None, False)):
        engine = SimpleNamespace(module=SimpleNamespace(_keep_in_fp32_modules=["b"]))
        options = SendOptions.of(rollout(dtype=dtype, engine_kwargs={"ascend_quant": {"proof": proves}}), "cpu")
        sent = list(WeightSender(engine, options).as_sent(matrices.items(), None))
        assert [name for name, _ in sent] == [*matrices, SENT][: 3 if proves else 2]
        if proves:
            proof = Receiving()
            sent = list(proof.take(sent))
            assert proof.prove() == 2
        sent = dict(sent)
        assert torch.equal(sent["a.weight"], torch.ones(2, 2).bfloat16() if rounds else matrices["a.weight"])
        assert sent["b.weight"] is matrices["b.weight"]


def test_each_sync_has_its_own_figures_of_which_a_step_has_those_of_the_slowest_rank(monkeypatch):
    """Seconds until each group is there, and none of those in which it is used."""
    clock = [0.0]

    def weights():
        for seconds, pair in ((2.0, ("a", torch.ones(2, 3))), (3.0, ("b", torch.ones(4).bfloat16()))):
            clock[0] += seconds
            yield pair

    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    worker = object.__new__(sender.sends_weights(ActorRolloutRefWorker, SendOptions()))
    assert hasattr(worker.sync_metrics, MAGIC_ATTR)  # offered to verl's controller
    worker.actor = SimpleNamespace(sender=WeightSender(None, SendOptions()))
    nothing = worker.sync_metrics()
    assert nothing and not any(nothing.values())
    for _ in range(2):
        for _ in worker.actor.sender.as_sent(weights(), None):
            clock[0] += 100.0
        assert worker.sync_metrics() == nothing | {"refit/gather_ms": 5000.0, "refit/bytes_sent": 2 * 3 * 4 + 4 * 2}
    ranks = [{"refit/gather_ms": 3.0, "refit/bytes_sent": 7}, {"refit/gather_ms": 2.0, "refit/bytes_sent": 9}]
    assert slowest_of(ranks) == {"refit/gather_ms": 3.0, "refit/bytes_sent": 9}


@pytest.mark.parametrize("kind", ["sends patches", "sends all", "of a reference alone"])
def test_an_actor_that_sends_patches_is_told_of_their_base(kind):
    told = []
    delta = SimpleNamespace(against=lambda *sync: told.append(sync)) if kind == "sends patches" else None
    sends = SimpleNamespace(sender=SimpleNamespace(delta=delta))
    actor = None if kind == "of a reference alone" else sends  # as with engines elsewhere

    class Verls:
        def init_model(self):
            self.actor, self.checkpoint_engine = actor, SimpleNamespace()

    worker = object.__new__(sender.sends_weights(Verls, SendOptions()))
    worker.init_model()
    assert [*vars(worker.checkpoint_engine)] == ([AGAINST] if delta else [])
    if delta:
        getattr(worker.checkpoint_engine, AGAINST)(5, 7)
    assert told == ([(5, 7)] if delta else [])


@pytest.mark.parametrize("scheme", ["int8", "fp8"])
def test_a_stack_of_experts_is_taken_apart_where_no_bucket_holds_it_as_floats_and_as_codes(scheme):
    stacks = [("l.mlp.experts.gate_up_proj", torch.randn(3, 8, 32)), ("l.mlp.experts.down_proj", torch.randn(3, 5, 48))]
    one_each = compat.experts_apart([*stacks, ("l.mlp.gate.weight", torch.ones(3, 2))], "qwen3_moe")
    whole = [("l.mlp.experts.down_proj:int8", torch.ones(2, 4, 32, dtype=torch.int8))]
    assert compat.experts_apart(whole, "gpt_oss") == whole  # verl leaves these whole
    engine = SimpleNamespace(model_config=SimpleNamespace(hf_config=SimpleNamespace(model_type="qwen3_moe")))
    for bucket in (max(stack.nbytes for _, stack in stacks), 0):  # which holds each stack, or none
        left = WeightSender(engine, SendOptions(bucket=bucket))._in_buckets(stacks)
        assert (left[0][1] is stacks[0][1]) == (left[-1][1] is stacks[1][1]) == (bucket > 0)
        for (name, here), (other, there) in zip(compat.experts_apart(left, "qwen3_moe"), one_each[:-1], strict=True):
            assert name == other and torch.equal(here, there)
    names = [f"l.mlp.experts.{expert}.{leaf}.weight" for expert in range(3) for leaf in ("gate_proj", "up_proj")]
    names += [f"l.mlp.experts.{expert}.down_proj.weight" for expert in range(3)]
    assert [name for name, _ in one_each] == [*names, "l.mlp.gate.weight"]
    assert torch.equal(one_each[3][1], stacks[0][1][1, 4:]) and torch.equal(one_each[8][1], stacks[1][1][2])
    found = compat.experts_apart(prequantized.coded(stacks, SCHEMES[scheme]), "qwen3_moe")
    wanted = prequantized.coded(one_each[:-1], SCHEMES[scheme])
    assert [name for name, _ in found] == [name for name, _ in wanted]
    for (_, a), (_, b) in zip(found, wanted, strict=True):
        assert torch.equal(a.view(torch.int8), b.view(torch.int8))


def test_kernels_for_codes_are_there_before_the_first_of_them_leave(monkeypatch):
    shards = {"a": torch.ones(4, 32), "b": torch.ones(2, 64), "c": torch.ones(3, 5, 64), "d": torch.ones(32, 48)}
    monkeypatch.setattr(compat, "fsdp2_shards", lambda engine: shards)
    monkeypatch.setattr(weight_sender, "own_device", lambda: HOST)
    found = set()
    monkeypatch.setattr(prequantized, "coded", lambda weights, scheme: found.update(tuple(w.shape) for _, w in weights))
    WeightSender(None, SendOptions(proves=False)).send_codes(SCHEMES["int8"], frozenset("abc"))
    assert found == {(1, 32), (1, 64)}


def test_the_wake_up_that_a_sync_waits_for_is_added_to_its_receipts(monkeypatch):
    """The weights' begin a sync; what the cache's takes is not waited for."""
    clock = [0.0]

    async def wake(server, tags=None):
        clock[0] += {"weights": 2.0, "kv_cache": 3.0}[tags[0]]

    async def ask(engine, method):
        asked.append(clock[0])
        return [[({"refit/wake_ms": 7.0, "refit/number": len(asked)}, {"weights": "1f"}), None]]

    async def syncs():
        for number in (1, 2):
            for tag in ("weights", "kv_cache"):
                await server.wake_up(tags=[tag])
            receipt, none = await server.refit_receipts()
            metrics = {"refit/wake_ms": 2007.0, "refit/number": number}
            assert receipt == (metrics, {"weights": "1f"}) and none is None
        await server.refit_receipts()
        assert asked == [2.0, 7.0, 10.0], "before the cache wakes up, as the engine does one after the other"

    monkeypatch.setattr(replica.vLLMHttpServer, "wake_up", wake)
    monkeypatch.setattr(replica.compat, "ask_every_engine", ask)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    server = object.__new__(RefitHttpServer)
    server.engine, server.node_rank, asked = None, 0, []
    asyncio.run(syncs())


@pytest.mark.parametrize("fails", [False, True])
def test_what_reads_the_cache_waits_until_it_is_awake(monkeypatch, fails):
    events = []

    async def wake(server, tags=None):
        events.append(f"wakes {tags[0]}")
        await opened.wait()
        if fails:
            raise MemoryError("no room for the cache")
        events.append("awake")

    async def generate(server, prompt):
        events.append(f"answers {prompt}")
        return SimpleNamespace(extra_fields={})

    async def sleep(server):
        events.append("sleeps")

    async def step():
        await server.wake_up(tags=["kv_cache"])
        events.append("the trainer goes on")
        given_up, waits = (asyncio.ensure_future(server.generate(prompt)) for prompt in "ab")
        await asyncio.sleep(0.01)
        assert events == ["wakes kv_cache", "the trainer goes on"]
        given_up.cancel()
        opened.set()
        answers = await asyncio.gather(given_up, waits, return_exceptions=True)
        return [*answers, *await asyncio.gather(server.sleep(), return_exceptions=True)]

    async def ask(engine, method):
        return []

    monkeypatch.setattr(replica.compat, "ask_every_engine", ask)
    for name, method in (("wake_up", wake), ("generate", generate), ("sleep", sleep)):
        monkeypatch.setattr(replica.vLLMHttpServer, name, method)
    server = object.__new__(RefitHttpServer)
    server.engine, server.node_rank, server.replica_rank = None, 0, 3
    opened = asyncio.Event()
    given_up, answer, slept = asyncio.run(step())
    assert isinstance(given_up, asyncio.CancelledError)
    if fails:
        assert isinstance(answer, MemoryError) and isinstance(slept, MemoryError) and len(events) == 2
    else:
        assert events[2:] == ["awake", "answers b", "sleeps"] and slept is None
        assert answer.extra_fields[replica.REPLICA] == 3


@pytest.mark.parametrize(
    ("free", "settings", "stays"),
    [
        ([[5 << 30], [9 << 30]], {}, True),  # four buckets of 1 GiB, and 1 GiB
        ([[9 << 30, (5 << 30) - 1]], {}, False),
        ([[9 << 30]], {"memory": "release"}, False),
        ([[0]], {}, False),  # of a CPU
        ([[9 << 30]], {"sleeps": False}, False),
        ([[9 << 30]], {"node": 1}, False),
    ],
)
def test_the_cache_stays_where_a_sync_has_room_beside_it(monkeypatch, free, settings, stays):
    events = []

    async def ask(engine, method):
        assert method == "refit_free_bytes"
        return free

    async def release(server):
        events.append("releases")

    async def resume(server):
        events.append("resumes")

    async def sync():
        await server.release_kv_cache()
        await server.resume_kv_cache()

    monkeypatch.setattr(replica.compat, "ask_every_engine", ask)
    monkeypatch.setattr(replica.vLLMHttpServer, "release_kv_cache", release)
    monkeypatch.setattr(replica.vLLMHttpServer, "resume_kv_cache", resume)
    server = object.__new__(RefitHttpServer)
    server.engine, server.node_rank = None, settings.get("node", 0)
    rollout = {
        "engine_kwargs": {"ascend_quant": {"memory": settings.get("memory", "auto")}},
        "checkpoint_engine": {"update_weights_bucket_megabytes": 1024},
        "free_cache_engine": settings.get("sleeps", True),
    }
    server.config = OmegaConf.create(rollout)
    asyncio.run(sync())
    assert events == ([] if stays else ["releases", "resumes"])


@pytest.mark.parametrize(("proof", "extension"), [(True, "RefitWorkerExtension"), (False, "UnprovedWorkerExtension")])
def test_the_engine_expects_what_the_trainer_sends(proof, extension):
    from ascend_quant.integrations.verl.receiving import worker

    server = object.__new__(RefitHttpServer)
    server.config = {"engine_kwargs": {"ascend_quant": {"proof": proof}}}
    assert server._get_worker_extension_cls() == f"{worker.__name__}.{extension}"
    assert getattr(worker, extension).refit_wants_proof is proof
