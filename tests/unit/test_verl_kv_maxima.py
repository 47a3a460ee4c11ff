"""The trainer's side of the scales of a KV cache: what attention gets, against a recomputation in float64."""

from contextlib import nullcontext
from math import isnan
from types import SimpleNamespace

import pytest
import torch
from kv_cases import largest

pytest.importorskip("verl", reason="the verl adapter needs verl")
pytest.importorskip("vllm", reason="verl's workers need vLLM")

import transformers
from verl.single_controller.base.decorator import MAGIC_ATTR
from verl.workers.engine_workers import TrainingWorker

from ascend_quant.integrations.verl import settings
from ascend_quant.integrations.verl.sending import hooks, weight_sender
from ascend_quant.integrations.verl.sending.kv_amax import AmaxObserver
from ascend_quant.integrations.verl.sending.options import SendOptions
from ascend_quant.integrations.verl.sending.sender import SendingTrainingWorker
from ascend_quant.integrations.verl.sending.weight_sender import WeightSender
from ascend_quant.integrations.verl.settings import Patches
from ascend_quant.integrations.verl.training.attention_settings import PACKED
from ascend_quant.integrations.wrapping import install
from ascend_quant.kv_cache.scales import AGE, FP8, INT8, Form, sent_name
from ascend_quant.refit import RefitError
from ascend_quant.transfer.checksums import Receiving
from ascend_quant.transfer.delta import Receiver

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 100, "head_dim": 16}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
CONFIGS = {
    "llama": (transformers.LlamaConfig, HEADS),
    "qwen2": (transformers.Qwen2Config, HEADS),
    "qwen3": (transformers.Qwen3Config, HEADS),
    "qwen3-moe": (transformers.Qwen3MoeConfig, {**HEADS, **EXPERTS}),
}
CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def looks():
    from ascend_quant.integrations.verl.training import packed_attention  # noqa: F401  known to transformers

    install(hooks.WITH_KV_SCALES)


def made(kind: str, attention: str) -> torch.nn.Module:
    config, more = CONFIGS[kind]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config(**SIZES, **more, attn_implementation=attention))
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # biases and norms that matter
            parameter.normal_(0, 1) if name.endswith("bias") else parameter.mul_(4.0 if parameter.dim() > 1 else 1.0)
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 3)
    return model


def texts(seed: int = 1) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [torch.randint(0, 100, (1, length)) for length in (3, 17, 9)]


def run(model: torch.nn.Module, ids: torch.Tensor) -> None:
    model(input_ids=ids, position_ids=torch.arange(ids.shape[1]).unsqueeze(0), use_cache=False)


def sent(maxima: AmaxObserver, model: torch.nn.Module) -> dict[str, list[float]]:
    return {name: tensor.tolist() for name, tensor in maxima.as_sent(model, CPU)}


def expected(model: torch.nn.Module, ids: list[torch.Tensor], age: int = 0, form: Form = FP8) -> dict:
    found = {
        sent_name(name, kind): pytest.approx([value * form.margin / form.largest for value in values], rel=1e-5)
        for name, of_qkv in largest(model, ids, form.by_channel).items()
        for kind, values in zip("qkv", of_qkv, strict=True)
        if kind in form.kinds
    }
    return {**found, AGE: [age]}


@pytest.mark.parametrize("form", [FP8, INT8], ids=lambda form: form.cache)
@pytest.mark.parametrize(
    ("kind", "attention"), [("llama", "eager"), ("qwen2", "sdpa"), ("qwen3", PACKED), ("qwen3-moe", PACKED)]
)
def test_scales_are_of_what_attention_gets_behind_norms_and_rotation(kind, attention, form):
    model, maxima = made(kind, attention), AmaxObserver(form)
    with maxima.observe(), torch.no_grad():
        for ids in texts():
            run(model, ids)
    run(model, texts(7)[1] * 0 + 99)  # outside nobody looks
    found, wanted = sent(maxima, model), expected(model, texts(), form=form)
    assert list(found) == list(wanted) and len(found) == len(form.kinds) * SIZES["num_hidden_layers"] + 1
    assert found == wanted
    channels = HEADS["num_key_value_heads"] * SIZES["head_dim"] if form.by_channel else 1
    assert {tensor.shape for name, tensor in maxima.as_sent(model, CPU) if name != AGE} == {(channels,)}
    assert len({tuple(values) for values in found.values()}) == len(found)


def test_a_step_begins_anew_two_syncs_of_a_step_send_the_same_and_a_step_without_a_pass_takes_while_it_trains():
    model, maxima = made("qwen2", "sdpa"), AmaxObserver()
    first, second, third = (texts(seed) for seed in (1, 2, 3))
    assert maxima.as_sent(model, CPU) == []  # the sync before the first step

    def log_probs(ids):
        with maxima.observe():
            run(model, ids)

    def train(ids):
        with maxima.observe_update():
            run(model, ids)

    for ids in first:
        log_probs(ids)  # more than one call a step
    train(second[0])
    wanted = expected(model, first)
    for _ in range(2):
        assert sent(maxima, model) == wanted
    log_probs(second[0])
    assert sent(maxima, model) == expected(model, second[:1])  # a step that trains a critic alone
    log_probs(third[0])
    train(first[1])
    assert sent(maxima, model) == expected(model, third[:1])
    train(second[1])  # verl's bypass mode
    assert sent(maxima, model) == expected(model, second[1:2])


def test_checkpointed_layers_and_their_gradients_are_as_before():
    model, maxima = made("qwen3", "sdpa").train(), AmaxObserver()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    gradients = []
    for looked in (False, True):
        model.zero_grad()
        with maxima.observe_update() if looked else torch.enable_grad():
            model(input_ids=texts()[1], labels=texts()[1], use_cache=False).loss.backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    assert all(torch.equal(gradients[0][name], gradient) for name, gradient in gradients[1].items())
    assert sent(maxima, model) == expected(model, texts()[1:2])


def test_nan_is_not_hidden_and_an_attention_that_nobody_saw_is_named():
    model, maxima = made("qwen2", "sdpa"), AmaxObserver()
    with torch.no_grad():
        model.model.layers[2].self_attn.v_proj.bias[0] = float("nan")
    with maxima.observe():
        run(model, texts()[0])
    assert isnan(sent(maxima, model)[sent_name("model.layers.2.self_attn", "v")][0])
    del maxima._of[model.model.layers[1].self_attn]
    for one, named in ((model, r"layers\.1\.self_attn"), (torch.nn.Linear(2, 2), "Linear")):
        with pytest.raises(RefitError, match=named):
            maxima.as_sent(one, CPU)


def test_the_worker_takes_them_and_they_are_proved_behind_the_weights(monkeypatch):
    model = made("qwen2", "sdpa")
    for name in ("infer_batch", "train_mini_batch"):
        monkeypatch.setattr(TrainingWorker, name, lambda self, ids: run(model, ids))
    worker = object.__new__(SendingTrainingWorker)
    worker.sender = WeightSender(SimpleNamespace(module=model), SendOptions(form=FP8))
    assert all(hasattr(getattr(type(worker), name), MAGIC_ATTR) for name in ("infer_batch", "train_mini_batch"))
    monkeypatch.setattr(weight_sender, "own_device", lambda: CPU)
    weights = {"a.weight": torch.ones(2, 2)}
    for passes in (0, 1):
        if passes:
            worker.infer_batch(texts()[1])
            worker.train_mini_batch(texts()[0])
        proof = Receiving()
        arrived = dict(proof.take(list(worker.as_sent(weights.items()))))
        scales = expected(model, texts()[1:2]) if passes else {}
        assert proof.prove() == len(arrived) == len(weights) + len(scales)
        assert list(arrived) == [*weights, *scales]
        assert {name: arrived[name].tolist() for name in scales} == scales


def test_a_delta_sync_before_any_pass_has_no_group_of_scales(monkeypatch):
    monkeypatch.setattr(weight_sender, "own_device", lambda: CPU)
    model = made("qwen2", "sdpa")
    sends = WeightSender(SimpleNamespace(module=model), SendOptions(proves=False, form=FP8, patches=Patches(CPU)))
    receiver, weights = Receiver(CPU), {"a.weight": torch.ones(2, 2)}
    for passes in (0, 1):
        if passes:
            with sends.observing():
                run(model, texts()[1])
        sends.delta.against(1, passes)
        receiver.begin()
        arrived = [pair for blob in sends.as_sent(weights.items(), None) for pair in receiver.take(*blob)]
        receiver.settle()
        assert [name for name, _ in arrived] == [*weights, *(expected(model, texts()[1:2]) if passes else ())]


@pytest.mark.parametrize("form", [FP8, INT8], ids=lambda form: form.cache)
def test_int8_has_a_pass_of_its_own_before_the_first_weights_leave(monkeypatch, form):
    model, modes = made("qwen3", "sdpa"), []
    engine = SimpleNamespace(module=model, eval_mode=lambda: nullcontext(modes.append("eval")))
    sends = WeightSender(engine, SendOptions(form=form))
    maxima = sends.amax
    monkeypatch.setattr(weight_sender, "own_device", lambda: CPU)
    get = sends.calibrated(lambda base_sync_done: ("weights", base_sync_done))
    for _ in range(2):
        assert get(base_sync_done=True) == ("weights", True)
    assert modes == ["eval"] * form.by_channel and maxima.has_seen is form.by_channel
    found = sent(maxima, model)
    assert len(found) == (len(form.kinds) * SIZES["num_hidden_layers"] + 1) * form.by_channel
    assert all(min(values) > 0 for name, values in found.items() if name != AGE)
    with maxima.observe():
        run(model, texts()[1])
    assert sent(maxima, model) == expected(model, texts()[1:2], form=form)  # nothing of that pass is left


def asking(cache: str) -> dict:
    return {"engine_kwargs": {"vllm": {"hf_overrides": {"quantization_config": {"kv_cache": cache}}}}}


@pytest.mark.parametrize(
    ("rollout", "device", "form"),
    [
        ({}, "cuda", None),
        ({"engine_kwargs": {"vllm": {"kv_cache_dtype": "fp8"}}}, "cuda", FP8),
        ({"engine_kwargs": {"vllm": {"kv_cache_dtype": "fp8_per_token_head"}}}, "cuda", None),
        (asking("fp8"), "cuda", FP8),
        (asking("int8"), "cuda", None),  # its scales lie in the cache
        (asking("int8"), "npu", INT8),
        (asking("auto"), "npu", None),
    ],
)
def test_which_settings_want_them(rollout, device, form):
    assert settings.scales_of_cache(rollout, device) is form
