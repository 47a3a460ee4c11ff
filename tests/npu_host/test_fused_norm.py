"""vllm-ascend fuses a norm with the quantization of its result, in a graph of our linear layers too.

Its patterns are registered twice: in its own pass, and in npugraph_ex, its default backend. Both run here, on the graph
of a model's norm and first MLP product. Its norm has an operator of its own where vllm-ascend's kernels are compiled,
which they are not on a host: there one with the same schema (csrc/torch_binding.cpp) stands in.
"""

import copy
import importlib

import pytest
import torch
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from npu_host import models, vllm_engine, whole_model

TOKENS = 5
NORM = (
    "npu_add_rms_norm_bias(Tensor x1, Tensor x2, Tensor gamma, Tensor? beta=None, float epsilon=1e-6)"
    " -> (Tensor y, Tensor rstd, Tensor x)"
)
ALONE, FUSED = "npu_dynamic_quant", "npu_add_rms_norm_dynamic_quant"


def shapes_of_norm(x, residual, weight, bias=None, epsilon=1e-6):
    return torch.empty_like(x), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32), torch.empty_like(x)


NOT_MATCHED = (
    "vllm-ascend 0.23's pattern has a bias, and a graph leaves out what is an operator's default: no bias and 1e-6"
)


@pytest.fixture(params=[False, True], ids=["torch_npu's norm", "vllm-ascend's norm"])
def passes(request, monkeypatch):
    """vllm-ascend's module of the pass; nothing is registered anywhere yet."""
    found = pytest.importorskip("vllm_ascend.compilation.passes.norm_quant_fusion_pass", reason="moved since 0.23")
    managers = pytest.importorskip("npugraph_ex.patterns.pattern_pass_manager", reason="comes with torch_npu")
    base = importlib.import_module("vllm_ascend.compilation.passes.base_pattern")
    monkeypatch.setattr(base, "_registered_patterns", set())
    monkeypatch.setattr(managers, "_global_pattern_pass_manager", None)
    library = torch.library.Library("_C_ascend", "FRAGMENT")
    if request.param:
        library.define(NORM)
        library.impl("npu_add_rms_norm_bias", shapes_of_norm, "Meta")
        for module in (found, importlib.import_module("vllm_ascend.ops.layernorm")):
            monkeypatch.setattr(module, "enable_custom_op", lambda: True)
    yield found, managers
    library._destroy()


def counted(graph: torch.fx.Graph) -> tuple[int, int]:
    """How often the graph quantizes alone, and along with a norm."""
    names = [node.target._schema.name.partition("::")[2] for node in graph.nodes if hasattr(node.target, "_schema")]
    return names.count(ALONE), names.count(FUSED)


@pytest.mark.parametrize("epsilon", [1e-5, 1e-6])  # Llama's, Qwen's
def test_a_norm_and_the_quantization_behind_it_are_one_kernel(passes, epsilon, request, tmp_path):
    module, managers = passes
    if epsilon == 1e-6 and module.enable_custom_op():
        request.applymarker(pytest.mark.xfail(strict=True, reason=NOT_MATCHED))
    settings = {"weight_nz_mode": 0}
    with whole_model.built(vllm_engine.running, tmp_path, models.DENSE, settings=settings) as (_, model, config):
        layer = model.model.layers[0]
        layer.post_attention_layernorm.variance_epsilon = epsilon

        def mlp_begins(x_MK, residual_MK):
            normed_MK, residual_MK = layer.post_attention_layernorm(x_MK, residual_MK)
            return layer.mlp.gate_up_proj(normed_MK)[0], residual_MK

        with vllm_engine.forward(config, TOKENS), FakeTensorMode(allow_non_fake_inputs=True):
            own = module.AddRMSNormQuantFusionPass(config).pattern_match_passes
            x_MK = torch.empty(TOKENS, config.model_config.get_hidden_size(), device="npu", dtype=torch.bfloat16)
            traced = make_fx(mlp_begins, decomposition_table=select_decomp_table())(x_MK, x_MK.clone())
            traced.graph.eliminate_dead_code()  # as every compiler does before its passes
            assert counted(traced.graph) == (1, 0)
            for patterns in (own, managers._pattern_manager().pass_dict):
                graph = copy.deepcopy(traced).graph
                patterns.apply(graph)
                assert counted(graph) == (0, 1)
