"""Where the int8 KV cache of NPUs (C8) is refused, by name: engines, devices, layers, heads, versions."""

from types import SimpleNamespace

import pytest
import torch
from naming import line_naming

from ascend_quant.integrations import vllm as plugin
from ascend_quant.kv_cache.scales import INT8
from ascend_quant.refit import RefitError
from npu_host import c8_models, device, reference

plugin.register()

from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm_ascend.attention.attention_v1 import (  # noqa: E402
    AscendAttentionBackendImpl,
    AscendC8AttentionBackendImpl,
)

from ascend_quant.integrations.vllm.compat import cache_dtypes  # noqa: E402
from ascend_quant.integrations.vllm.kv_cache import options as kv_cache  # noqa: E402
from ascend_quant.integrations.vllm_ascend import c8, c8_probe, c8_refusals, compat  # noqa: E402
from ascend_quant.integrations.vllm_ascend.config import NpuQuantConfig  # noqa: E402

FIA = "npu::npu_fused_infer_attention_score"


@pytest.fixture(autouse=True)
def tried_anew():
    c8_probe._tried.cache_clear()
    yield
    c8_probe._tried.cache_clear()


def build(folder, **changed) -> None:
    with c8_models.built(folder, **changed):
        pass


def test_engines(monkeypatch):
    assert c8_refusals.why_engine_has_none("int8") is None and compat.device_type() in c8_refusals.DEVICES
    with pytest.raises(RefitError, match=line_naming("kv_cache=fp8", "NPUs")):
        NpuQuantConfig(kv_cache="fp8")
    monkeypatch.setattr(compat, "device_type", lambda: "_310P")
    with pytest.raises(RefitError, match=line_naming("kv_cache=int8", "A2 and A3", "_310P")):
        NpuQuantConfig(kv_cache="int8")
    monkeypatch.setattr(compat, "C8Scheme", None)
    with pytest.raises(RefitError, match=line_naming("kv_cache=int8", "C8")):
        NpuQuantConfig(kv_cache="int8")


@pytest.mark.each_version
def test_an_engines_arguments(monkeypatch, tmp_path):
    """Through vLLM's own function, which the plugin has replaced."""
    c8_models.config_of("Qwen3ForCausalLM").save_pretrained(tmp_path / "model")
    overrides = {"quantization_config": {"quant_method": "ascend_quant", "kv_cache": "int8"}}

    def arguments(**more):
        path = str(tmp_path / "model")
        given = {"quantization": "ascend_quant", "hf_overrides": overrides, "skip_tokenizer_init": True}
        return EngineArgs(model=path, tokenizer=path, **given, **more)

    plain = arguments()
    plain.create_model_config()
    assert plain.kv_cache_dtype == ("int8" if "int8" in cache_dtypes() else "auto")  # 0.30, or 0.23
    again = arguments(kv_cache_dtype=plain.kv_cache_dtype)
    again.create_model_config()
    assert again.kv_cache_dtype == plain.kv_cache_dtype
    with pytest.raises(kv_cache.KvCacheError, match=line_naming("kv_cache=int8", "fp8")):
        arguments(kv_cache_dtype="fp8").create_model_config()
    monkeypatch.setattr(compat, "C8Scheme", None)
    with pytest.raises(kv_cache.KvCacheError, match=line_naming("kv_cache=int8", "C8")):
        arguments().create_model_config()


def layer(**changed) -> SimpleNamespace:
    impl = object.__new__(changed.pop("attention", AscendAttentionBackendImpl))
    vars(impl).update(sinks=changed.pop("sinks", None), alibi_slopes=None, enable_hamming_sparse=False)
    impl.enable_c8_quant = changed.pop("switched_on", True)
    return SimpleNamespace(**{"impl": impl, "attn_type": "decoder", "sliding_window": None, "head_size": 128} | changed)


def config(block_size=128, transfer=None) -> SimpleNamespace:
    return SimpleNamespace(cache_config=SimpleNamespace(block_size=block_size), kv_transfer_config=transfer)


@pytest.mark.each_version
@pytest.mark.parametrize(
    ("changed", "engine", "named"),
    [
        ({"attention": type("ContextParallel", (AscendAttentionBackendImpl,), {})}, {}, "ContextParallel"),
        ({"switched_on": False}, {}, "captures graphs"),  # vllm-ascend 0.30
        ({"attn_type": "encoder_only"}, {}, "encoder_only"),
        ({"sliding_window": 4096}, {}, "4096"),
        ({"sinks": torch.ones(1)}, {}, "sinks"),
        ({"head_size": 80}, {}, "80"),
        ({}, {"block_size": 16}, "16"),
        ({}, {"transfer": object()}, "kv_transfer_config"),
    ],
)
def test_layers(changed, engine, named):
    assert c8_refusals.why_layer_has_none(layer(), config()) is None
    assert named in c8_refusals.why_layer_has_none(layer(**changed), config(**engine))


def test_a_layer_is_named_before_its_model_is_there(tmp_path):
    with pytest.raises(RefitError, match=line_naming("model.layers.0.self_attn.attn", "kv_cache=int8", "40")):
        build(tmp_path, head_dim=40)


@pytest.fixture
def operator():
    """Plants a kernel, and puts the former one back."""
    libraries = []

    def plant(compute):
        found = reference.REFERENCES[FIA]
        fault = reference.Reference(FIA, lambda a: compute(a, found.compute), found.on_device)
        library = torch.library.Library("npu", "IMPL", device.KEY)
        library.impl("npu_fused_infer_attention_score", reference.kernel(fault), allow_override=True)
        libraries.append(library)

    yield plant
    library = torch.library.Library("npu", "IMPL", device.KEY)
    library.impl("npu_fused_infer_attention_score", reference.kernel(reference.REFERENCES[FIA]), allow_override=True)
    device._libraries.append(library)


def refusing(a, compute):
    raise RuntimeError(f"aclnnFusedInferAttentionScore: {a.num_heads}/{a.num_key_value_heads} heads")


def of_another_head(a, compute):
    a.key_antiquant_scale = a.key_antiquant_scale.flip(0)
    return compute(a)


def of_another_block(a, compute):
    a.block_table = a.block_table.flip(1)
    return compute(a)


@pytest.mark.parametrize("fault", [refusing, of_another_head, of_another_block])
def test_heads_that_the_operator_does_not_decode_are_refused_with_their_numbers(tmp_path, operator, fault):
    operator(fault)
    with pytest.raises(RefitError, match=line_naming("model.layers.0.self_attn.attn", "(4, 2)", "64")):
        build(tmp_path)


@pytest.mark.parametrize("heads", [(28, 4), (40, 8), (7, 1), (16, 16)])
def test_all_pairs_of_heads_are_tried_and_their_error_is_that_of_bf16(heads):
    npu = torch.device("npu:0")
    with torch.device(npu):
        impl = c8_probe.scratch(AscendC8AttentionBackendImpl, *heads, 128)
        assert c8_probe.largest_error(impl, torch.bfloat16, npu) < c8_probe.TOLERANCE / 4
        assert c8_probe._tried(AscendC8AttentionBackendImpl, *heads, 128, torch.bfloat16, npu) is None


@pytest.mark.parametrize(("name", "source"), [("_c8_of_tomorrow", "_c8_k_scale"), ("_c8_v_aq_scale_nz_bnsd",) * 2])
def test_a_vllm_ascend_that_derives_or_copies_something_else_is_refused_with_its_name(
    tmp_path, monkeypatch, name, source
):
    original = AscendC8AttentionBackendImpl._prepare_c8_scales

    def more(self, layer, where):
        original(self, layer, where)
        setattr(layer, name, getattr(layer, source).clone())

    monkeypatch.setattr(AscendC8AttentionBackendImpl, "_prepare_c8_scales", more)
    with pytest.raises(RefitError, match=line_naming("model.layers.0.self_attn.attn", name)):
        build(tmp_path)


@pytest.mark.parametrize(
    ("heads", "ranks", "own", "first"), [(8, 2, 4, [0, 4]), (8, 8, 1, list(range(8))), (2, 4, 1, [0, 0, 1, 1])]
)
def test_a_rank_takes_the_channels_of_its_heads(heads, ranks, own, first):
    """Vllm-ascend itself cuts whole parameters so (`_prepare_c8_scales`)."""
    size = 32
    values = torch.arange(1, 2 * heads * size + 1, dtype=torch.float32).view(2, -1).bfloat16().float()
    for rank, start in enumerate(first):
        of_rank = SimpleNamespace(num_kv_heads=own, head_size=size, k_cache_scale=torch.ones(1, dtype=torch.bfloat16))
        buffers = c8.C8Buffers({"layers.0.self_attn": of_rank}, heads, rank, ranks)
        scales, offsets, inverses = buffers.kept(values)
        assert buffers.channels == heads * size and buffers.form is INT8
        mine = values.view(2, heads, size)[:, start : start + own].flatten()
        assert torch.equal(scales, mine) and torch.equal(inverses, 1 / mine) and not offsets.any()


def test_layers_of_unequal_heads_are_refused():
    kinds = [SimpleNamespace(num_kv_heads=heads, head_size=64) for heads in (2, 4)]
    with pytest.raises(RefitError, match=line_naming("kv_cache=int8", "(2, 64)", "(4, 64)")):
        c8.C8Buffers(dict(enumerate(kinds)), 4, 0, 1)
