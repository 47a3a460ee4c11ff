"""The option kv_cache: its values, what it means for vLLM's arguments, and by what name it is refused."""

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from vllm.v1.attention.backends import registry

from ascend_quant.engine.options import KV_CACHES, NAME, Options
from ascend_quant.integrations.vllm import compat, contract
from ascend_quant.integrations.vllm import config as own_config
from ascend_quant.integrations.vllm.kv_cache import options as kv_cache
from ascend_quant.integrations.vllm.kv_cache.attention import register


def model(**changed):
    text = SimpleNamespace(layer_types=changed.pop("layer_types", None))
    config = SimpleNamespace(quantization_config=changed.pop("options", None))
    plain = {"use_mla": False, "is_hybrid": False, "is_attention_free": False}
    return SimpleNamespace(**plain | {"hf_config": config, "hf_text_config": text, "quantization": NAME} | changed)


def made(dtype="auto", **changed):
    """The engine's arguments after vLLM has made the model's configuration."""
    backend = {"attention_backend": changed.pop("backend", None), "attention_config": None}
    arguments, config = SimpleNamespace(kv_cache_dtype=dtype, **backend), model(**changed)
    assert kv_cache.configuring(lambda self: config)(arguments) is config
    return arguments


class Platform:
    """A stand-in for vLLM's."""

    device_type = "cuda"

    def __init__(self, capability=(9, 0), cpu=False):
        self.capability, self.cpu = capability, cpu

    def is_cpu(self):
        return self.cpu

    def is_cuda(self):
        return self.device_type == "cuda" and not self.cpu

    def has_device_capability(self, wanted):
        return self.capability >= wanted


@pytest.fixture
def on(monkeypatch):
    """Be on a platform, with all dtypes known and all of vLLM there that a cache needs."""
    monkeypatch.setattr(contract, "problem_of", lambda feature: None)
    monkeypatch.setattr(compat, "cache_dtypes", lambda: ("auto", "fp8", "fp8_e4m3", "int8_per_token_head"))
    monkeypatch.delenv("VLLM_KV_CACHE_LAYOUT", raising=False)

    def be(*args, **kwargs):
        for module in (kv_cache, own_config, register):
            monkeypatch.setattr(module, "current_platform", Platform(*args, **kwargs))

    yield be
    registry.AttentionBackendEnum.CUSTOM.clear_override()


def test_values():
    assert [Options(kv_cache=value).kv_cache for value in KV_CACHES] == ["auto", "int8", "fp8"]
    for wrong in ("int4", "INT8", ""):
        with pytest.raises(ValueError, match="kv_cache"):
            Options(kv_cache=wrong)
    with pytest.raises(ValueError, match="kv_cache"):  # one engine, one cache
        Options(replicas=[{"scheme": "int8"}, {"kv_cache": "int8"}])


@pytest.mark.parametrize(("asked", "dtype"), [("int8", "int8_per_token_head"), ("fp8", "fp8")])
def test_an_engine_of_ours_gets_the_dtype(on, asked, dtype):
    on()
    assert made(options={"kv_cache": asked}).kv_cache_dtype == dtype
    inside = model()
    inside.hf_text_config.quantization_config = {"kv_cache": asked}
    assert kv_cache.asked_for(inside) == asked


def test_others_keep_theirs(on):
    on()
    assert made("fp8", options={"scheme": "int8"}).kv_cache_dtype == "fp8"
    assert made("fp8", options={"kv_cache": "auto"}).kv_cache_dtype == "fp8"
    assert made(options={"kv_cache": "int8"}, quantization="fp8").kv_cache_dtype == "auto"
    assert made(options=None, quantization=None).kv_cache_dtype == "auto"


def test_int8_is_served_by_our_backend(on):
    on()
    ours = registry.AttentionBackendEnum.CUSTOM
    for given in (None, ours):
        assert made(options={"kv_cache": "int8"}, backend=given).attention_backend is ours
    assert ours.get_path() == register.PATH and ours.get_class().get_name() == "CUSTOM"
    assert made(options={"kv_cache": "fp8"}).attention_backend is None
    with pytest.raises(kv_cache.KvCacheError, match="FLASH_ATTN"):
        made(options={"kv_cache": "int8"}, backend=registry.AttentionBackendEnum.FLASH_ATTN)
    registry.register_backend(ours, "some.other.Backend")
    register.register_attention()
    with pytest.raises(kv_cache.KvCacheError, match=r"some\.other\.Backend"):
        made(options={"kv_cache": "int8"})


def test_two_dtypes_are_refused(on):
    on()
    with pytest.raises(kv_cache.KvCacheError, match=r"kv_cache=int8.*fp8_e5m2"):
        made("fp8_e5m2", options={"kv_cache": "int8"})
    assert made("fp8_e4m3", options={"kv_cache": "fp8"}).kv_cache_dtype == "fp8"


def test_a_model_is_refused_with_its_configuration(on):
    on()
    with pytest.raises(kv_cache.KvCacheError, match="MLA"):
        made(options={"kv_cache": "fp8"}, use_mla=True)


@pytest.mark.parametrize(
    ("asked", "platform", "name"),
    [
        ("fp8", {"capability": (8, 0)}, "A100"),
        ("int8", {"cpu": True}, "CPU"),
    ],
)
def test_devices_without_it(on, asked, platform, name):
    on(**platform)
    with pytest.raises(kv_cache.KvCacheError, match=rf"kv_cache={asked}.*{name}"):
        kv_cache.check_engine(asked)


def test_devices_with_it(on):
    for asked, capability in (("int8", (8, 0)), ("int8", (9, 0)), ("fp8", (8, 9)), ("fp8", (9, 0))):
        on(capability)
        kv_cache.check_engine(asked)


def test_other_layouts_and_engines(on, monkeypatch):
    on()
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "HND")
    kv_cache.check_engine("fp8")
    with pytest.raises(kv_cache.KvCacheError, match="HND"):
        kv_cache.check_engine("int8")
    monkeypatch.setattr(compat, "cache_dtypes", lambda: ("auto", "fp8"))
    with pytest.raises(kv_cache.KvCacheError, match="int8_per_token_head"):
        kv_cache.check_engine("int8")


class NpuConfig:
    """A stand-in for the quantization config on an NPU."""

    @classmethod
    def why_no_cache(cls, asked):
        return None if asked == "int8" else f"{asked} on NPUs"


def test_on_npus_it_is_no_dtype_and_the_quantization_config_says_what_is_served(on, monkeypatch):
    on()
    monkeypatch.setattr(Platform, "device_type", "npu")
    config = own_config.AscendQuantConfig
    monkeypatch.setattr(kv_cache, "get_quantization_config", lambda name: config)
    with pytest.raises(kv_cache.KvCacheError, match=r"kv_cache=int8.*npu"):  # of a platform that has nothing to say
        made(options={"kv_cache": "int8"})
    config = NpuConfig
    arguments = made(options={"kv_cache": "int8"}, layer_types=["sliding_attention", "full_attention"])
    assert arguments.kv_cache_dtype == "auto" and arguments.attention_backend is None  # unequal layers: each is asked
    with pytest.raises(kv_cache.KvCacheError, match=r"kv_cache=fp8.*NPUs"):
        made(options={"kv_cache": "fp8"})
    with pytest.raises(kv_cache.KvCacheError, match="int8_per_token_head"):
        made("int8_per_token_head", options={"kv_cache": "int8"})
    for other in ({"use_mla": True}, {"is_hybrid": True}):
        with pytest.raises(kv_cache.KvCacheError, match=r"MLA|hybrid"):
            made(options={"kv_cache": "int8"}, **other)


@pytest.mark.parametrize("asked", ["int8", "fp8"])
@pytest.mark.parametrize(
    ("changed", "name"),
    [({"use_mla": True}, "MLA"), ({"is_hybrid": True}, "hybrid"), ({"is_attention_free": True}, "attention")],
)
def test_models_without_it(asked, changed, name):
    with pytest.raises(kv_cache.KvCacheError, match=name):
        kv_cache.check_model(asked, model(**changed))


def test_layers_that_differ():
    kinds = ["sliding_attention", "full_attention"]
    kv_cache.check_model("fp8", model(layer_types=kinds))
    kv_cache.check_model("int8", model(layer_types=["full_attention"] * 2))
    with pytest.raises(kv_cache.KvCacheError, match="full_attention, sliding_attention"):
        kv_cache.check_model("int8", model(layer_types=kinds))


def test_this_vllm_knows_the_dtypes():
    assert {"auto", "fp8"} <= set(compat.cache_dtypes())
