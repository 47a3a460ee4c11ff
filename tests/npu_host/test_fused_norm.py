"""A norm and the quantization of its result become one kernel, in a graph of our linear layers too.

vllm-ascend's patterns, and ours beside them, are registered twice: in its own pass, and in npugraph_ex, its default
backend. Both run here, on the graph of a model's norm and first MLP product, and what becomes of it is carried out. The
norm has an operator of its own where vllm-ascend's kernels are compiled, which they are not on a host: there one with
the same schema (csrc/torch_binding.cpp) stands in.
"""

import copy
import importlib
import sys
from types import ModuleType

import pytest
import torch
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ascend_quant.integrations.vllm_ascend import fused_norm
from ascend_quant.integrations.vllm_ascend.hooks import HOOKS
from ascend_quant.integrations.wrapping import install
from npu_host import checkpoint, models, vllm_engine, whole_model
from npu_host.ops.numerics import quantize_rows
from npu_host.reference import bind

pytestmark = pytest.mark.each_version

TOKENS = 5
NORM = (
    "npu_add_rms_norm_bias(Tensor x1, Tensor x2, Tensor gamma, Tensor? beta=None, float epsilon=1e-6)"
    " -> (Tensor y, Tensor rstd, Tensor x)"
)
ALONE, FUSED = "npu_dynamic_quant", "npu_add_rms_norm_dynamic_quant"


def shapes_of_norm(x, residual, weight, bias=None, epsilon=1e-6):
    return torch.empty_like(x), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32), torch.empty_like(x)


def name_of(target) -> str:
    return target._schema.name.partition("::")[2] if hasattr(target, "_schema") else ""


def counted(graph: torch.fx.Graph) -> tuple[int, int]:
    """How often the graph quantizes alone, and along with a norm."""
    names = [name_of(node.target) for node in graph.nodes]
    return names.count(ALONE), names.count(FUSED)


class Computed(torch.fx.Interpreter):
    """A graph carried out on host memory. The norm is rounded to BF16 either way, which CANN does not say of FUSED."""

    def call_function(self, target, args, kwargs):
        name = name_of(target)
        if not name.startswith("npu_add_rms_norm"):
            return super().call_function(target, args, kwargs)
        a = bind(target._schema, args, kwargs)
        summed = a.x1.cpu() + a.x2.cpu()
        mean = summed.float().square().mean(-1, keepdim=True)
        normed = (summed.float() * torch.rsqrt(mean + a.epsilon) * a.gamma.cpu().float()).bfloat16()
        if name != FUSED:
            return normed.npu(), mean.npu(), summed.npu()
        assert (a.smooth_scale1, a.smooth_scale2, a.beta, a.y_dtype) == (None, None, None, None)
        codes, scale = quantize_rows(normed.float())
        return codes.npu(), None, summed.npu(), scale.npu(), None


@pytest.fixture(params=[False, True], ids=["torch_npu's norm", "vllm-ascend's norm"])
def passes(request, monkeypatch):
    """vllm-ascend's module of the pass; nothing is registered anywhere yet."""
    found = importlib.import_module("vllm_ascend.compilation.passes.norm_quant_fusion_pass")
    managers = pytest.importorskip("npugraph_ex.patterns.pattern_pass_manager", reason="comes with torch_npu")
    base = importlib.import_module("vllm_ascend.compilation.passes.base_pattern")
    layers = importlib.import_module("vllm_ascend.ops.layernorm")
    if not request.param and "npu_add_rms_norm" not in layers.AscendRMSNorm.forward_oot.__code__.co_names:
        pytest.skip("this version has the compiled norm alone")
    monkeypatch.setattr(base, "_registered_patterns", set())
    monkeypatch.setattr(managers, "_global_pattern_pass_manager", None)
    library = torch.library.Library("_C_ascend", "FRAGMENT")
    if request.param:
        library.define(NORM)
        library.impl("npu_add_rms_norm_bias", shapes_of_norm, "Meta")
        monkeypatch.setitem(sys.modules, "vllm_ascend.vllm_ascend_C", ModuleType("vllm_ascend_C"))
        for module in (found, layers):
            monkeypatch.setattr(module, "enable_custom_op", lambda: True)
    yield found, managers
    library._destroy()


def test_a_pass_of_which_less_is_known_stays_as_it_is(monkeypatch):
    module = importlib.import_module("vllm_ascend.compilation.passes.norm_quant_fusion_pass")
    own = module.AddRMSNormQuantFusionPass.__init__
    own = getattr(own, "__wrapped__", own)
    monkeypatch.setattr(module.AddRMSNormQuantFusionPass, "__init__", own)
    with monkeypatch.context() as without:
        without.delattr(module, fused_norm.THEIRS)
        install(HOOKS)
        assert module.AddRMSNormQuantFusionPass.__init__ is own
    install(HOOKS)
    assert module.AddRMSNormQuantFusionPass.__init__ is not own


@pytest.mark.parametrize("epsilon", [1e-5, 1e-6])  # Llama's, Qwen's
def test_a_norm_and_the_quantization_behind_it_are_one_kernel(passes, epsilon, tmp_path):
    module, managers = passes
    settings = {"weight_nz_mode": 0}
    with whole_model.built(vllm_engine.running, tmp_path, models.DENSE, settings=settings) as (moe, model, config):
        whole_model.load(model, checkpoint.state_of(moe, 0))
        layer = model.model.layers[0]
        layer.post_attention_layernorm.variance_epsilon = epsilon

        def mlp_begins(x_MK, residual_MK):
            normed_MK, residual_MK = layer.post_attention_layernorm(x_MK, residual_MK)
            return layer.mlp.gate_up_proj(normed_MK)[0], residual_MK

        with vllm_engine.forward(config, TOKENS):
            made = torch.randn(2, TOKENS, config.model_config.get_hidden_size(), generator=torch.Generator("cpu"))
            with FakeTensorMode(allow_non_fake_inputs=True):
                own = module.AddRMSNormQuantFusionPass(config).pattern_match_passes
                x_MK = torch.empty(made[0].shape, device="npu", dtype=torch.bfloat16)
                traced = make_fx(mlp_begins, decomposition_table=select_decomp_table())(x_MK, x_MK.clone())
            traced.graph.eliminate_dead_code()  # as every compiler does before its passes
            assert counted(traced.graph) == (1, 0)
            given = [one.bfloat16().npu() for one in made]
            wanted = Computed(traced).run(*given)
            for patterns in (own, managers._pattern_manager().pass_dict):
                fused = copy.deepcopy(traced)
                patterns.apply(fused.graph)
                assert counted(fused.graph) == (0, 1)
                fused.recompile()
                for found, one in zip(Computed(fused).run(*given), wanted, strict=True):
                    assert torch.equal(found.cpu(), one.cpu()) and one.cpu().any()
