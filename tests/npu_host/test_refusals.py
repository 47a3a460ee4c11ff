"""Settings of vllm-ascend that a refit would not go with are refused, and so are packages that do not go together."""

from types import SimpleNamespace

import pytest
import torch_npu

from ascend_quant.integrations import vllm as plugin
from ascend_quant.kernels.npu_ops import WrongPair
from ascend_quant.refit import RefitError

plugin.register()

from ascend_quant.integrations.vllm_ascend import refusals  # noqa: E402
from ascend_quant.integrations.vllm_ascend.config import NpuQuantConfig  # noqa: E402


def settings(monkeypatch, **values) -> None:
    """Makes vllm-ascend's config object hold these."""
    held = {name: SimpleNamespace(**value) if isinstance(value, dict) else value for name, value in values.items()}
    monkeypatch.setattr(refusals, "get_ascend_config", lambda: SimpleNamespace(**held))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"xlite_graph_config": {"enabled": True}}, "xlite_graph_config"),
        ({"layer_sharding": ["o_proj"]}, "layer_sharding"),
        ({"enable_fused_mc2": 1}, "enable_fused_mc2"),
        ({"eplb_config": {"dynamic_eplb": True}}, "dynamic_eplb"),
    ],
)
def test_a_setting_is_refused_in_one_line(monkeypatch, values, named):
    settings(monkeypatch, **values)
    with pytest.raises(RefitError, match=rf"^model.layers.0.mlp: .* {named}[^\n]*$"):
        refusals.refuse("model.layers.0.mlp", experts=True)


def test_what_is_off_passes(monkeypatch):
    settings(monkeypatch, enable_fused_mc2=0, layer_sharding=None, eplb_config={"dynamic_eplb": False})
    refusals.refuse("layer", experts=True)


def test_a_torch_npu_of_another_torch_is_refused_before_anything_is_built(monkeypatch):
    monkeypatch.setattr(torch_npu, "__version__", "2.7.1")
    with pytest.raises(WrongPair, match=r"torch_npu 2\.7\.1 goes with torch 2\.7\.1, not with 2\.13[^\n]*$"):
        NpuQuantConfig()


@pytest.mark.parametrize("scheme", ["fp8", "fp8_block", "int4_g128"])
def test_a_scheme_that_npus_do_not_serve_is_refused(scheme):
    with pytest.raises(RefitError, match=rf"^scheme {scheme} is not served on NPUs .* use int8 or bf16$"):
        NpuQuantConfig(scheme=scheme)


def test_an_option_of_another_type_is_refused():
    with pytest.raises(ValueError, match=r"nz='false': give true or false"):
        NpuQuantConfig.from_config({"quant_method": "ascend_quant", "nz": "false"})
