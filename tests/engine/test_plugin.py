"""What the plugin quantizes, what it leaves alone, what it refuses to serve."""

import sys
from types import SimpleNamespace

import pytest
import torch
from engines import differing, engine, logprobs, model_of, refit, resident
from models import checkpoint, expected, fused, make, perturbed
from naming import line_naming

from ascend_quant.integrations.vllm import hooks, refit_of, sleep
from ascend_quant.integrations.vllm.config import AscendQuantConfig
from ascend_quant.integrations.vllm.inventory import make_plain
from ascend_quant.integrations.vllm.layers.moe import refuse_unservable
from ascend_quant.integrations.vllm.layers.plain import PlainLinearMethod, RouterMethod
from ascend_quant.integrations.vllm.serving import calls, requests
from ascend_quant.integrations.wrapping import install
from ascend_quant.refit import RefitError
from ascend_quant.schemes.layer_names import Unquantized


def dtypes(llm):
    return {name.replace(".routed_experts", ""): p.dtype for name, p in model_of(llm).named_parameters()}


def methods_of_routers(llm):
    return {type(layer.quant_method) for name, layer in model_of(llm).named_modules() if name.endswith("mlp.gate")}


def test_embeddings_norms_routers_and_head_keep_their_dtype(tmp_path):
    with engine(make("qwen3-moe", tmp_path)) as llm:
        plain = {name for name, dtype in dtypes(llm).items() if dtype == torch.bfloat16}
        assert methods_of_routers(llm) == {RouterMethod}
    layers = {f"model.layers.{i}.{leaf}.weight" for i in range(2) for leaf in (
        "mlp.gate", "self_attn.q_norm", "self_attn.k_norm", "input_layernorm", "post_attention_layernorm")}  # fmt: skip
    assert plain == {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"} | layers


def test_the_scheme_and_each_receipt_are_logged(tmp_path, caplog):
    folder = make("qwen2", tmp_path)
    with caplog.at_level("INFO", logger="ascend_quant"), engine(folder) as llm:
        model_of(llm).load_weights(checkpoint(folder).items())
        assert "scheme int8 (W8A8" in caplog.text and "8 quantized parameters" in caplog.text
        assert refit(llm).last_receipt.digest in caplog.text and "number=2" in caplog.text


def test_ignored_layers_keep_their_dtype_and_are_refitted(tmp_path):
    folder = make("qwen3-moe", tmp_path)
    ignore = [
        "model.layers.0.self_attn.o_proj",
        r"re:.*layers\.1\.self_attn\.qkv_proj",  # a fused name: vLLM's own rule knows it in full alone
        r"re:.*layers\.1\.mlp\.experts",
    ]
    with engine(folder, quantization_config={"ignore": ignore}) as llm:
        found = dtypes(llm)
        assert found["model.layers.0.self_attn.o_proj.weight"] == torch.bfloat16
        assert found["model.layers.1.self_attn.qkv_proj.weight"] == torch.bfloat16
        assert found["model.layers.1.mlp.experts.w13_weight"] == torch.bfloat16
        assert found["model.layers.0.mlp.experts.w13_weight"] == torch.int8
        assert found["model.layers.0.self_attn.qkv_proj.weight"] == torch.int8
        state = perturbed(checkpoint(folder), seed=1)
        model_of(llm).load_weights(state.items())
        held, plain, coded = resident(llm), fused(state), expected(state)
        want = {name: plain[name] if found[name] == torch.bfloat16 else coded[name] for name in held}
        assert differing(held, want) == []
        left = ("model.layers.0.self_attn.o_proj", "model.layers.1.mlp.experts", "model.layers.1.self_attn.qkv_proj")
        receipt = refit(llm).last_receipt
        assert receipt.left_alone == Unquantized("int8", left) and receipt.as_metrics()["refit/unquantized"] == 3
        assert torch.isfinite(logprobs(llm)).all()


@pytest.mark.parametrize("kind", ["qwen2-tied", "qwen3-moe"])
def test_scheme_bf16_is_refitted_in_place_without_quantization(kind, tmp_path):
    folder = make(kind, tmp_path)
    with engine(folder, "bf16") as llm:
        assert methods_of_routers(llm) <= {PlainLinearMethod}  # of a mixture of experts
        before = logprobs(llm)
        state = perturbed(checkpoint(folder), seed=1)
        model_of(llm).load_weights(state.items())
        assert differing(resident(llm), fused(state)) == []
        after = logprobs(llm)
        assert not torch.equal(before, after)
        assert refit(llm).last_receipt.changed == 0
    other = make(kind, tmp_path, seed=5)
    with engine(other, "bf16") as llm:
        model_of(llm).load_weights(state.items())
        assert torch.equal(logprobs(llm), after)


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-moe"])
def test_compiled_graphs_follow_a_refit(kind, tmp_path):
    """vLLM's default: the graph is compiled on the first weights and must read the next ones."""
    folder = make(kind, tmp_path)
    state = perturbed(checkpoint(folder), seed=1)
    found = {}
    for eager in (True, False):
        with engine(folder, enforce_eager=eager) as llm:
            before = logprobs(llm)
            model_of(llm).load_weights(state.items())
            found[eager] = logprobs(llm)
    change = (found[True] - before).abs().mean()
    assert (found[False] - found[True]).abs().mean() < change / 10  # compiled code sums in another order


@pytest.mark.parametrize(
    ("moe", "message"),
    [
        ({"activation": "gelu", "has_bias": False}, r"mlp\.experts.*activation 'gelu'"),
        ({"activation": "silu", "has_bias": True}, r"mlp\.experts.*biases"),
    ],
)
def test_experts_that_are_not_plain_swiglu_are_refused(moe, message):
    with pytest.raises(RefitError, match=message):
        refuse_unservable(SimpleNamespace(**moe), "model.layers.0.mlp.experts")


def test_layers_that_derive_tensors_from_their_weights_are_refused():
    """As multi-head latent attention does (W_UK_T, W_UV), which vLLM's CPU build cannot load everywhere."""

    class Derives(torch.nn.Module):
        def process_weights_after_loading(self, dtype):
            raise AssertionError("not reached")

    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([torch.nn.Identity(), Derives()])})
    with pytest.raises(RefitError, match=line_naming("'layers.1'", "Derives")):
        make_plain(model, {})


def test_a_model_without_the_plugin_is_named():
    with pytest.raises(RefitError, match=line_naming("Linear", 'quantization="ascend_quant"')):
        refit_of(torch.nn.Linear(1, 1))


@pytest.mark.parametrize(("quant_config", "refuses"), [(None, False), (AscendQuantConfig(), True)])
def test_a_call_whose_answers_are_lost_stops_our_engines_only(quant_config, refuses):
    """As after a timeout: the next answers would be those of this call."""

    class Core:
        vllm_config = SimpleNamespace(quant_config=quant_config)

        @calls.answered
        def collective_rpc(self, method, *rest):
            raise TimeoutError("too late")

    core = Core()
    with pytest.raises(TimeoutError, match="too late"):
        core.collective_rpc("push")
    assert ("restart the engine" in str(requests.state_now(core).why)) == refuses


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("model.layers.0.self_attn.qkv_proj", True),
        (r"re:.*self_attn\.[qkv]_proj", True),
        ("lm_head", True),
        ("model.layers.0.self_attn.qkv_proj.weight", False),
        ("model.layers.7.self_attn.qkv_proj", False),
        ("re:qkv_proj", False),
    ],
)
def test_a_pattern_of_ignore_that_names_no_layer_is_an_error(pattern, matches):
    config = AscendQuantConfig(ignore=[pattern])
    config.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    config.quantizes("model.layers.0.self_attn.qkv_proj")  # as vLLM asks for its method
    if matches:
        return config.check_ignored(torch.nn.Module(), has_draft=False)
    with pytest.raises(RefitError) as raised:
        config.check_ignored(torch.nn.Module(), has_draft=False)
    assert repr(pattern) in str(raised.value)
    config.check_ignored(torch.nn.Module(), has_draft=True)  # it may mean the draft model's


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("ignore", [pattern]) for pattern in ("", "re:", 1, None, "re:(")),
        *(("replicas", [options]) for options in ({"replicas": []}, "int8", {"ignore": [""]})),
    ],
)
def test_options_of_another_kind_are_named(option, value):
    with pytest.raises(ValueError, match=r"ascend_quant option (ignore|replicas): "):
        AscendQuantConfig(**{option: value})


@pytest.mark.parametrize(("module", "name", "deepest"), sleep.SLEEPING_WORKERS)
def test_workers_tell_the_refit_of_their_sleep(monkeypatch, module, name, deepest):
    """Stand-ins: no worker that sleeps runs on a CPU."""

    class Worker:
        def __init__(self, refit):
            model = SimpleNamespace(ascend_quant_refit=refit)
            self.model_runner, self.slept = SimpleNamespace(model=model), []

        def sleep(self, level=1):
            self.slept.append(level)

        def wake_up(self, tags=None):
            self.slept.append(tags)

    for other, _, _ in sleep.SLEEPING_WORKERS:
        monkeypatch.setitem(sys.modules, other, SimpleNamespace())
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{name: Worker}))
    install(hooks.WITH_FIRST_MODEL)
    install(hooks.WITH_FIRST_MODEL)  # once is enough
    told = []
    before = []  # how often the worker had slept when it was told that it would
    refit = SimpleNamespace(
        slept=told.append,
        woke=told.append,
        falls_asleep=lambda _: before.append(len(worker.slept)),
        cache_woke=lambda: told.append("cache"),
    )
    worker, other = Worker(refit), Worker(None)
    worker.sleep(level=1)
    worker.wake_up(["weights"])
    assert told == [*worker.slept, "cache"] == [1, ["weights"], "cache"] and before == [0]
    other.sleep(2)
    assert other.slept == [2] and len(told) == 3
    if deepest < 2:
        with pytest.raises(RefitError, match=line_naming("sleep level 2")):
            worker.sleep(2)
        assert len(worker.slept) == 2
    else:
        worker.sleep(2)
        assert told[-1] == worker.slept[-1] == 2


def test_the_cache_may_wake_up_before_the_weights_whose_memory_holds_the_models_buffers():
    """vLLM 0.23 copies the buffers that it saved, whatever wakes up."""

    def wake_up(worker, tags=None):
        put_back.append((tags, dict(worker._sleep_saved_buffers)))
        worker._sleep_saved_buffers = {}

    put_back, buffers = [], {"rotary_emb.cos_sin_cache": torch.ones(1)}
    worker = SimpleNamespace(_sleep_saved_buffers=buffers, model_runner=SimpleNamespace(model=SimpleNamespace()))
    waking = sleep.reporting_wake_up(wake_up)
    for tags in (["kv_cache"], ["weights"], ["kv_cache"], None):
        waking(worker, tags)
    assert put_back == [(["kv_cache"], {}), (["weights"], buffers), (["kv_cache"], {}), (None, {})]
    waking(SimpleNamespace(_sleep_saved_buffers=buffers, model_runner=worker.model_runner), None)
    assert put_back[-1] == (None, buffers)
