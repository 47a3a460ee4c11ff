"""Settings of vllm-ascend that a refit would not go with are refused, each with one line."""

from types import SimpleNamespace

import pytest
import torch
from naming import line_naming
from torch import nn
from vllm_ascend.ascend_config import AscendConfig

from ascend_quant.integrations import vllm as plugin
from ascend_quant.refit import RefitError

plugin.register()

from ascend_quant.integrations.vllm_ascend import experts, refusals  # noqa: E402

ANY = [
    {"torchair_graph_config": {"enabled": True}},
    {"xlite_graph_config": {"enabled": True}},
    {"layer_sharding": ["o_proj"]},
    {"enable_matmul_allreduce": True},
    {"vllm_config": {"additional_config": {"enable_dsa_cp": True}}},
]
EXPERTS = [{"enable_fused_mc2": 1}, {"eplb_config": {"dynamic_eplb": True}}, {"dynamic_eplb": True}]


@pytest.fixture
def settings(monkeypatch):
    """Makes vllm-ascend's config object hold some values and no others."""

    def hold(values: dict) -> None:
        monkeypatch.setattr(refusals, "get_ascend_config", lambda: SimpleNamespace(**values))

    return hold


def refused(experts: bool) -> str:
    with pytest.raises(RefitError) as caught:
        refusals.refuse("model.layers.0.mlp", experts)
    return str(caught.value)


@pytest.mark.parametrize("values", ANY, ids=lambda values: next(iter(values)))
def test_a_setting_is_refused_for_every_layer(settings, values):
    settings(values)
    for experts_too in (False, True):
        line = refused(experts_too)
        assert line.startswith("model.layers.0.mlp: ") and "\n" not in line


@pytest.mark.parametrize("values", EXPERTS, ids=lambda values: next(iter(values)))
def test_a_setting_is_refused_for_experts(settings, values):
    settings(values)
    refusals.refuse("layer", experts=False)
    assert next(iter(values)).removesuffix("_config") in refused(True) or "dynamic_eplb" in refused(True)


@pytest.mark.parametrize("values", [{}, {"enable_fused_mc2": 2}, {"layer_sharding": None}, {"dynamic_eplb": False}])
def test_what_is_off_or_harmless_passes(settings, values):
    settings(values)
    refusals.refuse("layer", experts=True)


@pytest.mark.parametrize("name", ["VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE", "VLLM_ENABLE_FUSED_EXPERTS_ALLGATHER_EP"])
def test_environment_variables(settings, monkeypatch, name):
    settings({})
    monkeypatch.setenv(name, "1")
    assert name in refused(experts=True)
    monkeypatch.setenv(name, "0")
    refusals.refuse("layer", experts=True)


def test_torchair_by_vllm_ascends_own_config(monkeypatch):
    additional = {"torchair_graph_config": {"enabled": True}}
    config = AscendConfig(SimpleNamespace(additional_config=additional, parallel_config=None))
    monkeypatch.setattr(refusals, "get_ascend_config", lambda: config)
    assert "torchair_graph_config.enabled" in refused(experts=False)


@pytest.mark.parametrize(("graphs", "ranks", "why"), [(True, 8, "enforce_eager"), (True, 16, None), (False, 1, None)])
def test_experts_in_graphs(monkeypatch, graphs, ranks, why):
    monkeypatch.setattr(experts.Int8ExpertsScheme, "__init__", lambda scheme: setattr(scheme, "use_aclgraph", graphs))
    moe = SimpleNamespace(moe_parallel_config=SimpleNamespace(ep_size=ranks))
    if why is None:
        experts.Int8NpuExpertsMethod(moe, "experts")
    else:
        with pytest.raises(RefitError, match=why):
            experts.Int8NpuExpertsMethod(moe, "experts")


@pytest.mark.parametrize(("attribute", "value"), [("activation", "gelu"), ("apply_router_weight_on_input", True)])
def test_experts_that_are_computed_otherwise(attribute, value):
    method, layer = object.__new__(experts.Int8NpuExpertsMethod), nn.Module()
    method.prefix = "experts"
    setattr(layer, attribute, value)
    with pytest.raises(RefitError, match=line_naming("experts:")):
        method.create_weights(layer, 4, 64, 64, torch.bfloat16)


@pytest.mark.parametrize("asked", ["int8", "fp8"])
def test_a_kv_cache_is_refused_where_an_engine_and_where_its_config_is_made(asked):
    from ascend_quant.integrations.vllm.kv_cache import options as kv_cache
    from ascend_quant.integrations.vllm_ascend.config import NpuQuantConfig

    with pytest.raises(kv_cache.KvCacheError, match=line_naming(f"kv_cache={asked}", "C8")):
        kv_cache.check_engine(asked)
    with pytest.raises(RefitError, match=line_naming(f"kv_cache={asked}", "C8")):
        NpuQuantConfig(kv_cache=asked)
