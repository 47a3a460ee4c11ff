"""Models of several modalities: the language model is quantized and the rest is not, without an engine."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from vllm.config import ModelConfig, MultiModalConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.layers.attention.mm_encoder_attention import MMEncoderAttention
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.models.interfaces import SupportsMultiModal

from ascend_quant.integrations.vllm import hooks, towers
from ascend_quant.integrations.vllm.config import AscendQuantConfig
from ascend_quant.integrations.vllm.inventory import make_plain, residents_of
from ascend_quant.integrations.vllm.layers.linear import QuantizedLinearMethod
from ascend_quant.integrations.vllm.layers.plain import PlainLinearMethod
from ascend_quant.integrations.vllm.serving import requests
from ascend_quant.integrations.wrapping import install
from ascend_quant.refit import RefitError


class Part(nn.Module):
    def __init__(self, config: AscendQuantConfig, prefix: str):
        super().__init__()
        # a tower's layer may have the name of a router
        for name in ("fc", "gate"):
            prefixed = f"{prefix}.{name}"
            layer = ReplicatedLinear(64, 32, bias=False, quant_config=config, prefix=prefixed, disable_tp=True)
            setattr(self, name, layer)


class Seeing(nn.Module, SupportsMultiModal):
    """As vLLM's classes are built: tower and language model each under its mark, or both together, marked by class."""

    def __init__(self, config: AscendQuantConfig, images: int = 1, together: bool = False):
        super().__init__()
        vllm_config, model_config = VllmConfig.__new__(VllmConfig), ModelConfig.__new__(ModelConfig)
        vars(vllm_config).update(model_config=model_config)
        limits = dict.fromkeys(("image", "video"), images)
        vars(model_config).update(multimodal_config=MultiModalConfig(limit_per_prompt=limits))
        if together:
            with self._mark_composite_model(vllm_config, language_targets=Part, tower_targets={"image": Tower}):
                self.visual, self.language_model = Tower(config, "visual"), Part(config, "language_model")
            return
        with self._mark_tower_model(vllm_config, {"image", "video"}):
            self.visual = Tower(config, "visual")
        with self._mark_language_model(vllm_config):
            self.language_model = Part(config, "language_model")


class Tower(nn.Module):
    def __init__(self, config: AscendQuantConfig, prefix: str):
        super().__init__()
        self.block = Part(config, f"{prefix}.block") if prefix else None


@pytest.fixture(autouse=True)
def one_rank(monkeypatch):
    monkeypatch.setattr(parallel_state, "_TP", SimpleNamespace(rank_in_group=0, world_size=1))


@contextmanager
def of_vllm():
    install(hooks.BEFORE_FIRST_MODEL)
    with set_current_vllm_config(VllmConfig()):
        yield


def seeing(images: int = 1, together: bool = False, **options) -> Seeing:
    with of_vllm():
        return Seeing(AscendQuantConfig(scheme="int8", **options), images, together)


def methods(model: nn.Module) -> dict[str, type]:
    return {name: type(one.quant_method) for name, one in model.named_modules() if isinstance(one, ReplicatedLinear)}


def test_the_language_model_alone_is_quantized():
    model = seeing()
    found = methods(model)
    assert {name: kind for name, kind in found.items() if name.startswith("visual")} == dict.fromkeys(
        ("visual.block.fc", "visual.block.gate"), PlainLinearMethod
    )
    assert found["language_model.fc"] is QuantizedLinearMethod
    residents = residents_of(model)
    towers.check_quantized(model, residents)
    assert [name for name, one in residents.items() if one.codes] == ["language_model.fc.weight"]
    assert not towers.is_building()


def test_a_tower_that_is_not_built_needs_no_kernels():
    model = seeing(images=0)
    assert set(methods(model)) == {"language_model.fc", "language_model.gate"}
    assert not towers.is_building()


def test_what_is_built_together_is_refused_by_name_and_served_once_ignored():
    model = seeing(together=True)
    model._language_model_names = ["language_model"]  # Tower holds a Part too, which real classes do not
    with pytest.raises(RefitError, match=r"visual\.block\.fc\.weight .*ignore"):
        towers.check_quantized(model, residents_of(model))
    model = seeing(together=True, ignore=[r"re:visual\..*"])
    model._language_model_names = ["language_model"]
    towers.check_quantized(model, residents_of(model))
    assert methods(model)["language_model.fc"] is QuantizedLinearMethod


def test_a_model_of_text_is_not_asked():
    with of_vllm():
        part = Part(AscendQuantConfig(scheme="int8"), "model")
    towers.check_quantized(part, residents_of(part))
    assert methods(part)["fc"] is QuantizedLinearMethod


@pytest.mark.parametrize("fp8", [False, True])
def test_a_towers_attention_is_served_unless_it_has_scales_of_its_own(fp8):
    attention = MMEncoderAttention.__new__(MMEncoderAttention)
    nn.Module.__init__(attention)
    attention.fp8_enabled = fp8
    model = nn.ModuleDict({"attn": attention})
    if not fp8:
        return make_plain(model, {})
    with pytest.raises(RefitError, match=r"'attn' of type MMEncoderAttention .*FP8"):
        make_plain(model, {})


def test_a_model_within_a_model_is_attached_with_it(monkeypatch):
    attached = []
    for name in ("add_pass", "teach_pass", "install"):
        monkeypatch.setattr(hooks, name, lambda *args: None)
    monkeypatch.setattr(hooks, "attach", lambda model, config: attached.append(model))
    config = SimpleNamespace(
        quant_config=AscendQuantConfig(scheme="bf16"), parallel_config=SimpleNamespace(data_parallel_rank=0)
    )

    def initialize(vllm_config, what):
        if what == "fails":
            raise KeyError(what)
        return (what, build(vllm_config, "inner")) if what == "outer" else what

    build = hooks.attaching(initialize)
    for _ in range(2):
        build(config, "outer")
        with pytest.raises(KeyError):
            build(config, "fails")
    assert attached == [("outer", "inner")] * 2


@pytest.mark.parametrize("sees", [False, True])
def test_what_a_tower_made_with_old_weights_is_forgotten(sees):
    calls = []
    core = SimpleNamespace(
        vllm_config=SimpleNamespace(model_config=SimpleNamespace(is_multimodal_model=sees)),
        reset_prefix_cache=lambda: calls.append("prefixes"),
        reset_encoder_cache=lambda: calls.append("towers"),
    )
    for number in (1, 1, 2):
        requests._forget_prefixes(core, number)
    assert calls == (["prefixes", "towers"] if sees else ["prefixes"]) * 2


def test_marks_are_taken_off_when_a_tower_fails(monkeypatch):
    monkeypatch.setattr(Tower, "__init__", lambda self, *args: torch.zeros(1).view(2))
    with pytest.raises(RuntimeError):
        seeing()
    assert not towers.is_building()
