"""Fake quantization: its values and gradients, the layers of a model that are selected, and slime's variables."""

import copy
import re

import pytest
import torch
from naming import line_naming
from qat_cases import engine_weight
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ascend_quant import oracle, qat
from ascend_quant.qat.variables import QatVariableError
from ascend_quant.schemes import UnknownScheme, get_scheme
from ascend_quant.schemes.layer_names import PatternError, Unquantized, keeps_its_dtype

SCHEME = "int4_g32"


@pytest.mark.parametrize("name", qat.SCHEMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_forward_of_the_engines_weight_gradient_of_the_identity(name, dtype):
    w = nn.Parameter(torch.randn(6, 256, dtype=dtype))
    before, seed = w.detach().clone(), torch.randn(6, 256, dtype=dtype)
    found = qat.fake_quantize(w, name)
    found.backward(seed)
    assert torch.equal(found, engine_weight(w, name)) and not torch.equal(found, w)
    assert torch.equal(w.grad, seed) and torch.equal(w, before)


def test_a_layer_gives_the_engines_product():
    """An int4 engine rounds no activations, so the two products differ only in the order of their sums."""
    scheme, w, x = get_scheme(SCHEME), torch.randn(64, 256), torch.randn(9, 256)
    layer = nn.Linear(256, 64, bias=False)
    layer.weight.data.copy_(w)
    qat.apply_fake_quantization(nn.ModuleDict({"up": layer}), SCHEME)
    product = oracle.product(x, *oracle.quantize(w, scheme), scheme)
    assert (layer(x) - product).norm() < 2e-6 * product.norm()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.gate = nn.Linear(64, 96, bias=True), nn.Linear(96, 64, bias=False), nn.Linear(64, 2)

    def forward(self, x):
        return self.down(F.silu(self.up(x))) * self.gate(x).sum(-1, keepdim=True)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(11, 64)
        self.layers = nn.ModuleList([Block(), Block()])
        self.lm_head = nn.Linear(64, 11, bias=False)

    def forward(self, ids, recompute=False):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = x + (checkpoint(layer, x, use_reentrant=False) if recompute else layer(x))
        return self.lm_head(x)


QUANTIZED = [f"layers.{i}.{name}" for i in range(2) for name in ("up", "down")]
UNQUANTIZED = ["layers.0.gate", "layers.1.gate", "lm_head"]


def model_with_its_reference(ignore=()):
    """Return a model, and a copy whose weights are those that the engine computes with."""
    torch.manual_seed(0)
    model = Model()
    reference = copy.deepcopy(model)
    for layer in QUANTIZED:
        if layer not in ignore:
            weight = reference.get_submodule(layer).weight
            weight.data.copy_(engine_weight(weight, SCHEME))
    return model, reference


def gradients(model, recompute=False):
    logits = model(torch.arange(11), recompute=recompute)
    logits.square().sum().backward()
    return logits, {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("recompute", [False, True])
def test_a_model_computes_as_one_with_the_engines_weights(recompute):
    model, reference = model_with_its_reference()
    before = copy.deepcopy(model.state_dict())
    parameters = dict(model.named_parameters())
    applied = qat.apply_fake_quantization(model, SCHEME)
    assert applied == (SCHEME, QUANTIZED, UNQUANTIZED, Unquantized(SCHEME)) and isinstance(
        model.layers[0].up, nn.Linear
    )
    (logits, found), (expected_logits, expected) = gradients(model, recompute), gradients(reference)
    assert torch.equal(logits, expected_logits)
    assert list(found) == list(expected) and all(torch.equal(found[key], expected[key]) for key in found)
    assert dict(model.named_parameters()) == parameters  # the same objects, by the same names
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in before)


@pytest.mark.parametrize("ignore", [["layers.0.up"], [r"re:layers\.0\.u", "embed_tokens"]])
def test_layers_that_the_engine_ignores(ignore):
    model, reference = model_with_its_reference(ignore=["layers.0.up"])
    applied = qat.apply_fake_quantization(model, SCHEME, ignore)
    assert applied.unquantized == ["layers.0.up", *UNQUANTIZED] and applied.in_engine.names == ("layers.0.up",)
    assert (
        str(applied) == f"3 layers are fake-quantized to {SCHEME}; not quantized: layers.0.up, {', '.join(UNQUANTIZED)}"
    )
    assert torch.equal(gradients(model)[0], gradients(reference)[0])


def test_experts_of_their_own_are_ignored_together():
    experts = [nn.ModuleDict({name: nn.Linear(64, 8) for name in ("up_proj", "down_proj")}) for _ in range(2)]
    model = nn.ModuleDict({"mlp": nn.ModuleDict({"experts": nn.ModuleList(experts)}), "up_proj": nn.Linear(64, 8)})
    for pattern in ("mlp.experts", r"re:.*\.experts\."):
        applied = qat.apply_fake_quantization(copy.deepcopy(model), SCHEME, [pattern])
        assert applied.quantized == ["up_proj"] and applied.in_engine == Unquantized(SCHEME, ("mlp.experts",))
    assert qat.apply_fake_quantization(copy.deepcopy(model), SCHEME, ["re:up_proj"]).unquantized == ["up_proj"]
    with pytest.raises(PatternError, match=r"mlp\.experts\.0\.up_proj.*mlp\.experts\.0\.down_proj.*mlp\.experts"):
        qat.apply_fake_quantization(model, SCHEME, ["re:.*up_proj"])
    assert not any("fake_quantizers" in vars(module) for module in model.modules())


def test_without_fake_quantization_a_model_computes_with_its_own_weights():
    model, reference = model_with_its_reference()
    plain = copy.deepcopy(model)
    qat.apply_fake_quantization(model, SCHEME)
    ids = torch.arange(11)
    with pytest.raises(ZeroDivisionError), qat.without_fake_quantization(model):
        assert torch.equal(model(ids), plain(ids))
        raise ZeroDivisionError
    assert torch.equal(model(ids), reference(ids))


class OldExperts(nn.Module):
    """The weights of three experts, without the attribute `is_transposed`.

    Args:
        turned: whether a weight is (E, input, output).
        gated: whether gate and up are one weight.
    """

    def __init__(self, turned, gated=True):
        super().__init__()
        up, down = (64, 192), (96 if gated else 192, 64)  # (input, output)
        up_name = "gate_up_proj" if gated else "up_proj"
        for name, shape in ((up_name, up), ("down_proj", down)):
            setattr(self, name, nn.Parameter(torch.randn(3, *(shape if turned else shape[::-1]))))

    def forward(self):
        return tuple(getattr(self, name) for name in self._parameters)


def test_layers_that_cannot_be_quantized_are_named_and_nothing_is_changed():
    model, reference = model_with_its_reference()
    for name in ("bf16", "fp8", "int8", "int4_g64"):
        with pytest.raises(UnknownScheme, match=line_naming(name, ": int4_g128, int4_g32", "apply_exact")):
            qat.fake_quantize(torch.ones(2, 128), name)
    with pytest.raises(ValueError, match=r"layers\.0\.up\.weight: .*64 .*128"):
        qat.apply_fake_quantization(model, "int4_g128")
    for pattern in ("layers.0.up.weight", "layers.0", "re:up"):
        with pytest.raises(PatternError, match=re.escape(repr(pattern))):
            qat.apply_fake_quantization(model, SCHEME, [r"re:.*\.down", pattern])
    with pytest.raises(ValueError, match="no layer"):
        qat.apply_fake_quantization(nn.Embedding(3, 4), SCHEME)
    assert qat.apply_fake_quantization(model, SCHEME).quantized == QUANTIZED
    with pytest.raises(RuntimeError):  # a forward that fails leaves the weights in place
        model.layers[0].up(torch.ones(2, 63))
    assert isinstance(model.layers[0].up.weight, nn.Parameter)
    assert torch.equal(gradients(model)[0], gradients(reference)[0])
    with pytest.raises(ValueError, match=r"layers\.0\.up\.weight"):  # twice
        qat.apply_fake_quantization(model, SCHEME)
    other = Model()
    other.get_output_embeddings = lambda: other.layers[1].up
    other.layers[1].down.forward = lambda x: x
    with pytest.raises(ValueError, match=line_naming("layers.1.down.weight:", "forward")):
        qat.apply_fake_quantization(other, SCHEME)
    del other.layers[1].down.forward
    assert "layers.1.up" in qat.apply_fake_quantization(other, SCHEME).unquantized  # a head that the model names
    assert keeps_its_dtype("model.layers.9.eh_proj") and not keeps_its_dtype("model.layers.9.eh_proj2")  # by vLLM


@pytest.mark.parametrize("turned", [False, True])
def test_the_layout_of_experts_is_known_from_their_class_or_their_shapes(turned):
    for gated in (True, False):
        experts = OldExperts(turned, gated)
        if not gated:
            with pytest.raises(ValueError, match=line_naming("OldExperts", "is_transposed")):
                qat.apply_fake_quantization(experts, SCHEME)
            experts.is_transposed = turned
        qat.apply_fake_quantization(nn.ModuleDict({"experts": experts}), SCHEME)
        for found, w in zip(experts(), experts.parameters(), strict=True):
            axes = (1, 2) if turned else (0, 0)
            assert torch.equal(found, engine_weight(w.transpose(*axes), SCHEME).transpose(*axes))


def test_slimes_variables():
    flag, group = "OPEN_TRAINING_INT4_FAKE_QAT_FLAG", "OPEN_TRAINING_INT4_GROUP_SIZE"
    for variables, scheme in (
        ({group: "32"}, None),
        ({flag: "0"}, None),
        ({flag: "1"}, "int4_g128"),
        ({flag: "1", group: "32"}, "int4_g32"),
    ):
        assert qat.scheme_of_environment(variables) == scheme
    for variables, named in (({flag: "true"}, [f"{flag}='true'", 1]), ({flag: "1", group: "64"}, ["'64'", 32, 128])):
        with pytest.raises(QatVariableError, match=line_naming(*named)):
            qat.scheme_of_environment(variables)
