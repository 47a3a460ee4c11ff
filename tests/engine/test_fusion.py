"""The pass that fuses quantization into what comes before it, on vLLM's own layers and as Inductor compiles them.

The ops' kernels need a GPU; here torch functions stand in for them, which note that they were called.
"""

import copy
import pickle
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from naming import has_line_naming
from torch import nn
from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.activation import GeluAndMul, SiluAndMul
from vllm.model_executor.layers.layernorm import RMSNorm

from ascend_quant import oracle
from ascend_quant.integrations.vllm.graphs import fusion, passes
from ascend_quant.integrations.vllm.graphs.fusion import FuseQuantization
from ascend_quant.kernels import exact_ops
from ascend_quant.kernels.cuda.serve import token_ops, triton_fused_tokens, triton_tokens

WIDTH, EPS = 64, 1e-5
PLACE = "post_grad_custom_post_pass"


class OlderNorm(nn.Module):
    """RMSNorm before vLLM had ops of its own for it: a graph then holds torch's."""

    def __init__(self, width, eps, dtype):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(width, dtype=dtype)), eps

    def forward_native(self, x, residual=None):
        dtype, x = x.dtype, x.to(torch.float32)
        if residual is not None:
            x = x + residual.to(torch.float32)
            residual = x.to(dtype)
        normed = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.variance_epsilon)
        normed = normed.to(dtype) * self.weight
        return normed if residual is None else (normed, residual)

    forward = forward_native


class Model(nn.Module):
    """Quantizes after a norm, a norm of a sum and SiLU-times-up, and one thing that nothing else computes."""

    def __init__(self, norm=RMSNorm, dtype=torch.bfloat16, activation=SiluAndMul):
        super().__init__()
        self.first, self.second = norm(WIDTH, EPS, dtype=dtype), norm(WIDTH, EPS, dtype=dtype)
        self.activation = activation()
        generator = torch.Generator().manual_seed(0)
        for layer in (self.first, self.second):
            layer.weight.data.copy_(1 + torch.randn(WIDTH, generator=generator) / 8)

    def forward(self, x, residual, gate_up):
        quantize = token_ops.quantize_tokens
        first = quantize(self.first.forward_native(x))
        normed, total = self.second.forward_native(x * 2, residual)
        return *first, *quantize(normed), *quantize(self.activation.forward_native(gate_up)), *quantize(total), total


def inputs(tokens, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(tokens)
    return [torch.randn(tokens, width, generator=generator).to(dtype) for width in (WIDTH, WIDTH, 2 * WIDTH)]


@pytest.fixture
def calls(monkeypatch):
    """Stand-ins for the kernels; the list of those that were called."""
    called = []

    def quantize(x):
        called.append("alone")
        codes, scale = oracle.quantize_rows(x)
        return codes, scale.unsqueeze(-1)

    def norm(x, weight, eps, residual=None, rounded=False):
        called.append(("exact " if rounded else "") + ("norm" if residual is None else "norm of a sum"))
        if rounded:
            total = x if residual is None else x + residual
            codes, scale = oracle.quantize_rows(exact_ops.rms_norm(total, weight, eps))
            return codes, scale.unsqueeze(-1), total
        total = x.float() if residual is None else x.float() + residual.float()
        normed = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + eps) * weight.float()
        codes, scale = oracle.quantize_rows(normed.to(x.dtype))
        return codes, scale.unsqueeze(-1), total.to(x.dtype)

    def silu(x, rounded=False):
        called.append("exact silu" if rounded else "silu")
        gate, up = x.float().chunk(2, -1)
        codes, scale = oracle.quantize_rows(exact_ops.silu_mul(x) if rounded else (F.silu(gate) * up).to(x.dtype))
        return codes, scale.unsqueeze(-1)

    monkeypatch.setattr(triton_tokens, "quantize_tokens", quantize)
    monkeypatch.setattr(triton_fused_tokens, "rms_norm_quantize", norm)
    monkeypatch.setattr(triton_fused_tokens, "silu_mul_quantize", silu)
    monkeypatch.setattr(fusion, "_layers", {})
    monkeypatch.setattr(fusion, "_told", set())
    fusion._fusions.cache_clear()
    yield called
    fusion._fusions.cache_clear()


def model_of(**options):
    with set_current_vllm_config(VllmConfig()):
        return Model(**options)


def results(model, calls, taught=True, dtype=torch.bfloat16):
    """What a model gives when compiled for any number of tokens, and the kernels that it calls."""
    torch._dynamo.reset()
    ours = FuseQuantization()
    if taught:
        ours.learn(model)
    with vllm_passes() as options, torch.inference_mode():
        compiled = torch.compile(model, fullgraph=True, options={PLACE: ours, "fx_graph_cache": False, **options})
        first = inputs(9, dtype)
        for argument in first:
            torch._dynamo.mark_dynamic(argument, 0)
        compiled(*first)
        calls.clear()
        return compiled(*inputs(5, dtype)), sorted(calls)


@contextmanager
def vllm_passes():
    """What vLLM itself does with its ops that may overwrite their arguments, where it has such."""
    try:
        from vllm.compilation.passes.inductor_pass import pass_context
        from vllm.compilation.passes.ir.inplace_functionalization import VllmIRInplaceFunctionalizationPass
        from vllm.config.utils import Range
    except ImportError:
        yield {}
    else:
        with pass_context(Range(start=1, end=9)):
            yield {"pre_grad_custom_pass": VllmIRInplaceFunctionalizationPass(VllmConfig())}


@pytest.mark.parametrize("norm", [RMSNorm, OlderNorm])
def test_what_comes_before_is_taken_in(calls, monkeypatch, norm, caplog):
    monkeypatch.setattr(fusion, "RMSNorm", norm)
    model = model_of(norm=norm)
    with caplog.at_level("INFO", logger="ascend_quant"):
        given, called = results(model, calls)
    assert called == ["alone", "norm", "norm of a sum", "silu"]
    assert has_line_naming(caplog.text, "1 alone, 1 with RMSNorm, 1 with RMSNorm … sum, 1 with SiLU")
    for found, wanted in zip(given, model(*inputs(5)), strict=True):
        assert close(found, wanted)


def close(found, wanted):
    """Equal but for a rounding of the activations, which graphs leave out between two ops."""
    off = (found.float() - wanted.float()).abs()
    return bool((off <= (1 if found.dtype == torch.int8 else wanted.float().abs() * 2**-7)).all())


class Exact(Model):
    """The same by the ops of an exact engine; the sum of its last norm is read once more, and its values too."""

    def forward(self, x, residual, gate_up):
        quantize, first, second = token_ops.quantize_tokens, self.first, self.second
        normed, total = exact_ops.add_rms_norm(
            exact_ops.rms_norm(x, first.weight, EPS) * 2, residual, second.weight, EPS
        )
        last, _ = exact_ops.add_rms_norm(normed, total, second.weight, EPS)
        alone = exact_ops.rms_norm(x, first.weight, EPS)
        return (
            *quantize(last),
            *quantize(exact_ops.silu_mul(gate_up)),
            *quantize(alone),
            total,
            *quantize(total),
            normed,
        )


def test_an_exact_engines_ops_are_taken_in_to_the_bit(calls):
    model = model_of()
    model.__class__ = Exact
    given, called = results(model, calls, taught=False)
    assert called == ["alone", "exact norm", "exact norm of a sum", "exact silu"]
    for found, wanted in zip(given, model(*inputs(5)), strict=True):
        assert torch.equal(found, wanted)


def test_untaught_the_pass_leaves_graphs_alone(calls):
    _, called = results(model_of(), calls, taught=False)
    assert called == ["alone"] * 4


def test_other_layers_are_left_alone(calls):
    model = model_of(activation=GeluAndMul)
    model.second.variance_epsilon = EPS * 2
    with_others = model_of()
    FuseQuantization().learn(with_others)
    _, called = results(model, calls, taught=False)
    assert called == ["alone", "alone", "alone", "norm"]


def test_layers_that_cannot_be_traced_are_left_alone(calls, monkeypatch, caplog):
    model = model_of()
    monkeypatch.setattr(RMSNorm, "forward_native", lambda self, x: x[0])
    fusion._layers[RMSNorm, WIDTH, EPS] = model.first
    with caplog.at_level("WARNING", logger="ascend_quant"):
        assert fusion._fusions((RMSNorm, WIDTH, EPS), WIDTH, torch.bfloat16) == []
    assert has_line_naming(caplog.text, "RMSNorm", "traced")


def test_other_dtypes_are_left_alone(calls):
    _, called = results(model_of(dtype=torch.float16), calls, dtype=torch.float16)
    assert called == ["alone"] * 4


class Shared(Model):
    """Its norm's result is read elsewhere, too."""

    def forward(self, x, residual, gate_up):
        normed, total = self.second.forward_native(x, residual)
        return *token_ops.quantize_tokens(normed), normed, total


class Last(Model):
    """Nobody reads the sum that is normed."""

    def forward(self, x, residual, gate_up):
        return token_ops.quantize_tokens(self.second.forward_native(x, residual)[0])


@pytest.mark.parametrize(("kind", "expected"), [(Shared, ["alone"]), (Last, ["norm of a sum"])])
def test_who_else_reads_what(calls, kind, expected):
    with set_current_vllm_config(VllmConfig()):
        model = kind()
    given, called = results(model, calls)
    assert called == expected
    for found, wanted in zip(given, model(*inputs(5)), strict=True):
        assert close(found, wanted)


def test_the_layers_weights_are_not_kept(calls):
    model = model_of()
    FuseQuantization().learn(model)
    kept = list(fusion._layers.values())
    assert len(kept) == 2 and not any(list(layer.parameters()) for layer in kept)
    assert len(list(model.parameters())) == 2


def config_of(scheme="int8", **settings):
    quant_config = SimpleNamespace(scheme=SimpleNamespace(name=scheme))
    return SimpleNamespace(quant_config=quant_config, compilation_config=CompilationConfig(**settings))


@pytest.fixture
def on_cuda(monkeypatch):
    monkeypatch.setattr(passes, "current_platform", SimpleNamespace(is_cuda=lambda: True, pass_key=PLACE))


def test_int8_engines_on_cuda_get_the_pass(on_cuda, calls):
    config = config_of()
    before = config.compilation_config.compute_hash()
    passes.add_pass(config)
    assert isinstance(config.compilation_config.inductor_compile_config[PLACE], FuseQuantization)
    assert config.compilation_config.compute_hash() != before  # so that vLLM compiles anew
    passes.teach_pass(model_of(), config)
    assert len(fusion._layers) == 2


def test_others_do_not(on_cuda, calls, monkeypatch):
    other = config_of("fp8")
    passes.add_pass(other)
    passes.teach_pass(model_of(), other)
    users = config_of(inductor_compile_config={PLACE: "the user's"})
    passes.add_pass(users)
    passes.teach_pass(model_of(), users)
    monkeypatch.setattr(passes, "current_platform", SimpleNamespace(is_cuda=lambda: False))
    elsewhere = config_of()
    passes.add_pass(elsewhere)
    assert PLACE not in other.compilation_config.inductor_compile_config and not fusion._layers
    assert users.compilation_config.inductor_compile_config[PLACE] == "the user's"
    assert PLACE not in elsewhere.compilation_config.inductor_compile_config


def test_vllm_may_copy_and_send_the_pass():
    ours = FuseQuantization()
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert other.uuid() == ours.uuid() and repr(other) == repr(ours)
