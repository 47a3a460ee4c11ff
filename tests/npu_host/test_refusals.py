"""Settings of vllm-ascend that a refit would not go with are refused, and so are packages that do not go together."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch_npu
from naming import line_naming

from ascend_quant.integrations import vllm as plugin
from ascend_quant.kernels.npu.ops import WrongPair
from ascend_quant.refit import RefitError
from npu_host import models, vllm_engine

pytestmark = pytest.mark.each_version

plugin.register()

from ascend_quant.integrations.vllm import drafters  # noqa: E402
from ascend_quant.integrations.vllm_ascend import refusals  # noqa: E402
from ascend_quant.integrations.vllm_ascend.config import NpuQuantConfig  # noqa: E402


def space(values: dict) -> SimpleNamespace:
    return SimpleNamespace(
        **{name: space(value) if isinstance(value, dict) else value for name, value in values.items()}
    )


def settings(monkeypatch, values: dict, engine: dict | None = None) -> None:
    """Makes vllm-ascend's config object, and vLLM's of the engine, hold these."""
    monkeypatch.setattr(refusals, "get_ascend_config", lambda: space(values))
    monkeypatch.setattr(refusals, "get_current_vllm_config", lambda: space(engine or {}))


def test_a_drafter_built_with_the_models_quantization_is_refused_by_name():
    config = NpuQuantConfig(scheme="int8")
    with (
        drafters.building(SimpleNamespace(architectures=["DeepSeekMTPModel"])),
        pytest.raises(RefitError, match=line_naming("model.layers.2.eh_proj", "speculative_config")),
    ):
        config.get_quant_method(torch.nn.Module(), "model.layers.2.eh_proj")


ANY = [
    ({"xlite_graph_config": {"enabled": True}}, {}, "xlite_graph_config"),
    ({"layer_sharding": ["o_proj"]}, {}, "layer_sharding"),
    ({"enable_matmul_allreduce": True}, {}, "enable_matmul_allreduce"),
    ({"enable_dsa_cp": True}, {}, "enable_dsa_cp"),
    ({"vllm_config": {"additional_config": {"enable_dsa_cp": True}}}, {}, "enable_dsa_cp"),
    (
        {"enable_pcp_o_proj_weight_sharding": True},
        {"parallel_config": {"prefill_context_parallel_size": 2}},
        "enable_pcp_o_proj_weight_sharding",
    ),
    ({"weight_nz_mode": 1}, {"model_config": {"enable_sleep_mode": True}}, "weight_nz_mode"),
    ({"weight_nz_mode": 2}, {"weight_transfer_config": {"backend": "hccl"}}, "weight_nz_mode"),
    ({}, {"cache_config": {"cpu_offload_gb": 4}}, "cpu_offload_gb"),
    ({}, {"offload_config": {"uva": {"cpu_offload_gb": 4}}}, "cpu_offload_gb"),
    ({}, {"offload_config": {"prefetch": {"offload_group_size": 8}}}, "offload_group_size"),
    ({}, {"load_config": {"load_format": "rfork"}}, "load_format=rfork"),
]
EXPERTS = [
    ({"enable_fused_mc2": 1}, {}, "enable_fused_mc2"),
    ({"eplb_config": {"dynamic_eplb": True}}, {}, "dynamic_eplb"),
    ({}, {"use_v2_model_runner": True, "parallel_config": {"enable_eplb": True}}, "enable_eplb"),
]


@pytest.mark.parametrize(("values", "engine", "named"), ANY + EXPERTS)
def test_a_setting_is_refused_in_one_line_of_experts_alone_or_of_all_layers(monkeypatch, values, engine, named):
    settings(monkeypatch, values, engine)
    refused = pytest.raises(RefitError, match=rf"^model.layers.0.mlp: [^\n]*{named}[^\n]*$")
    with refused:
        refusals.refuse("model.layers.0.mlp", experts=True)
    with refused if (values, engine, named) in ANY else nullcontext():
        refusals.refuse("model.layers.0.mlp", experts=False)


OFF = {
    "enable_fused_mc2": 0,
    "layer_sharding": None,
    "eplb_config": {"dynamic_eplb": False},
    "xlite_graph_config": {"enabled": False},
    "enable_dsa_cp": False,
}


@pytest.mark.parametrize(
    ("values", "engine"),
    [
        (OFF, {}),
        ({"weight_nz_mode": 1}, {"model_config": {"enable_sleep_mode": False}, "weight_transfer_config": None}),
        ({"weight_nz_mode": 0}, {"model_config": {"enable_sleep_mode": True}}),
        ({"enable_pcp_o_proj_weight_sharding": True}, {"parallel_config": {"prefill_context_parallel_size": 1}}),
        ({}, {"offload_config": {"uva": {"cpu_offload_gb": 0.0}, "prefetch": {"offload_group_size": 0}}}),
        ({}, {"load_config": {"load_format": "auto"}}),
        ({}, {"use_v2_model_runner": False, "parallel_config": {"enable_eplb": True}}),
    ],
)
def test_what_is_off_or_harmless_passes(monkeypatch, values, engine):
    settings(monkeypatch, values, engine)
    refusals.refuse("layer", experts=True)


def test_each_place_that_the_installed_versions_have_is_as_it_is_looked_for(tmp_path):
    """Not stand-ins: their own config objects, by their defaults."""
    from vllm_ascend.ascend_config import get_ascend_config

    with vllm_engine.running(tmp_path, models.DENSE) as config:
        theirs = get_ascend_config()
        assert refusals.held(theirs, "weight_nz_mode") == 1
        assert refusals.held(theirs, "enable_fused_mc2") == 0
        assert refusals.held(theirs, "eplb_config.dynamic_eplb") is False
        assert refusals.held(theirs, "xlite_graph_config.enabled") is False
        assert refusals.held(config, "offload_config.uva.cpu_offload_gb") == 0
        assert refusals.held(config, "offload_config.prefetch.offload_group_size") == 0
        assert refusals.held(config, "parallel_config.prefill_context_parallel_size") == 1
        assert refusals.held(config, "parallel_config.enable_eplb") is False
        assert refusals.held(config, "load_config.load_format") == "auto"
        assert refusals.held(config, "model_config.enable_sleep_mode") is False
        refusals.refuse("layer", experts=True)
        config.model_config.enable_sleep_mode = True
        with pytest.raises(RefitError, match="weight_nz_mode"):
            refusals.refuse("layer", experts=True)


def test_a_torch_npu_of_another_torch_is_refused_before_anything_is_built(monkeypatch):
    monkeypatch.setattr(torch_npu, "__version__", "2.7.1")
    with pytest.raises(WrongPair, match=line_naming("torch_npu 2.7.1", torch.__version__, "torch==2.7.1")):
        NpuQuantConfig()


@pytest.mark.parametrize("scheme", ["fp8", "fp8_block", "int4_g128"])
def test_a_scheme_that_npus_do_not_serve_is_refused(scheme):
    with pytest.raises(RefitError, match=line_naming(f"scheme {scheme}", "NPUs", "int8 or bf16")):
        NpuQuantConfig(scheme=scheme)


def test_an_option_of_another_type_is_refused():
    with pytest.raises(ValueError, match=line_naming("nz='false':", "true or false")):
        NpuQuantConfig.from_config({"quant_method": "ascend_quant", "nz": "false"})
