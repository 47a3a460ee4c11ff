"""Fake quantization as autograd sees it, the layers of a model that get it, and slime's variables."""

import copy
import re

import pytest
import torch
from naming import line_naming
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ascend_quant import oracle, qat
from ascend_quant.names import PatternError, Unquantized, keeps_its_dtype
from ascend_quant.qat.variables import QatVariableError
from ascend_quant.schemes import UnknownScheme, get_scheme


def engine_weight(w, name):
    """What the engine computes with, in the dtype of w."""
    values = oracle.dequantize(*oracle.quantize(w.detach(), get_scheme(name)))
    return (values.to(torch.bfloat16) if name.startswith("int4") else values).to(w.dtype)


@pytest.mark.parametrize("name", qat.SCHEMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_forward_of_the_engines_weight_gradient_of_the_identity(name, dtype):
    w = nn.Parameter(torch.randn(6, 256, dtype=dtype))
    before, seed = w.detach().clone(), torch.randn(6, 256, dtype=dtype)
    found = qat.fake_quantize(w, name)
    found.backward(seed)
    assert torch.equal(found, engine_weight(w, name)) and not torch.equal(found, w)
    assert torch.equal(w.grad, seed) and torch.equal(w, before)


@pytest.mark.parametrize("name", qat.SCHEMES)
def test_a_float32_master_rounded_to_bf16_afterwards_is_what_a_bf16_weight_gives(name):
    w = torch.randn(64, 256)
    assert torch.equal(qat.fake_quantize(w, name).bfloat16(), qat.fake_quantize(w.bfloat16(), name))


def test_int4_multiplies_with_the_engines_numbers_in_float32_too():
    found = qat.fake_quantize(torch.randn(64, 256), "int4_g32")
    assert torch.equal(found, found.bfloat16().float())


def test_an_int8_layer_gives_the_engines_product_but_for_the_rounding_of_its_inputs():
    """The engine rounds each token's activations to int8 as well: no layer of the trainer does."""
    scheme, w, x = get_scheme("int8"), torch.randn(64, 256), torch.randn(9, 256)
    exact = torch.randint(-127, 128, (9, 256)).float()
    exact[:, 0] = 127  # its scale is 1: int8 holds such tokens as they are
    rounded = oracle.dequantize(*oracle.quantize_rows(x))  # a token is a row
    layer = nn.Linear(256, 64, bias=False)
    layer.weight.data.copy_(w)
    qat.apply_fake_quantization(nn.ModuleDict({"up": layer}), "int8")
    codes, scale = oracle.quantize(w, scheme)

    def far(given, engines):
        product = oracle.product(engines, codes, scale, scheme)
        return ((layer(given) - product).norm() / product.norm()).item()

    assert far(exact, exact) < 2e-6 and far(rounded, x) < 2e-6
    assert 0.003 < far(x, x) < 0.03


@pytest.mark.parametrize("name", ["bf16", "fp8", "int4_g64"])
def test_schemes_without_fake_quantization(name):
    with pytest.raises(UnknownScheme, match=line_naming(name, ": int4_g128, int4_g32, int8")):
        qat.fake_quantize(torch.ones(2, 128), name)


def test_weights_without_gradients_and_evaluation():
    w = nn.Parameter(torch.randn(4, 32))
    with torch.no_grad():
        assert not qat.fake_quantize(w, "int8").requires_grad
    assert not qat.fake_quantize(w.detach(), "int8").requires_grad


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


def model_with_its_reference(name="int8", ignore=()):
    """A model, and one whose weights are already those that the engine computes with."""
    torch.manual_seed(0)
    model = Model()
    reference = copy.deepcopy(model)
    for layer in QUANTIZED:
        if layer not in ignore:
            weight = reference.get_submodule(layer).weight
            weight.data.copy_(engine_weight(weight, name))
    return model, reference


def gradients(model, recompute=False):
    logits = model(torch.arange(11), recompute=recompute)
    logits.square().sum().backward()
    return logits, {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", ["int8", "int4_g32"])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_model_computes_as_one_with_the_engines_weights(name, recompute):
    model, reference = model_with_its_reference(name)
    before = copy.deepcopy(model.state_dict())
    parameters = dict(model.named_parameters())
    applied = qat.apply_fake_quantization(model, name)
    assert applied == (name, QUANTIZED, UNQUANTIZED, Unquantized(name)) and isinstance(model.layers[0].up, nn.Linear)
    (logits, found), (expected_logits, expected) = gradients(model, recompute), gradients(reference)
    assert torch.equal(logits, expected_logits)
    assert list(found) == list(expected) and all(torch.equal(found[key], expected[key]) for key in found)
    assert dict(model.named_parameters()) == parameters  # the same objects, by the same names
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in before)


def test_a_trained_models_weights_move_by_less_than_a_code():
    model, _ = model_with_its_reference()
    qat.apply_fake_quantization(model, "int8")
    before = copy.deepcopy(model.state_dict())
    gradients(model)
    torch.optim.SGD(model.parameters(), lr=1e-8).step()
    moved = model.layers[0].up.weight - before["layers.0.up.weight"]
    assert moved.any() and moved.abs().max() < before["layers.0.up.weight"].abs().max() / 127 / 2


@pytest.mark.parametrize("ignore", [["layers.0.up"], [r"re:layers\.0\.u", "embed_tokens"]])
def test_layers_that_the_engine_ignores(ignore):
    model, reference = model_with_its_reference(ignore=["layers.0.up"])
    applied = qat.apply_fake_quantization(model, "int8", ignore)
    assert applied.unquantized == ["layers.0.up", *UNQUANTIZED] and applied.in_engine.names == ("layers.0.up",)
    assert str(applied) == f"3 layers are fake-quantized to int8; not quantized: layers.0.up, {', '.join(UNQUANTIZED)}"
    assert torch.equal(gradients(model)[0], gradients(reference)[0])


def test_experts_of_their_own_are_ignored_together():
    experts = [nn.ModuleDict({name: nn.Linear(64, 8) for name in ("up_proj", "down_proj")}) for _ in range(2)]
    model = nn.ModuleDict({"mlp": nn.ModuleDict({"experts": nn.ModuleList(experts)}), "up_proj": nn.Linear(64, 8)})
    for pattern in ("mlp.experts", r"re:.*\.experts\."):
        applied = qat.apply_fake_quantization(copy.deepcopy(model), "int8", [pattern])
        assert applied.quantized == ["up_proj"] and applied.in_engine == Unquantized("int8", ("mlp.experts",))
    assert qat.apply_fake_quantization(copy.deepcopy(model), "int8", ["re:up_proj"]).unquantized == ["up_proj"]
    with pytest.raises(PatternError, match=r"mlp\.experts\.0\.up_proj.*mlp\.experts\.0\.down_proj.*mlp\.experts"):
        qat.apply_fake_quantization(model, "int8", ["re:.*up_proj"])
    assert not any("fake_quantizers" in vars(module) for module in model.modules())


@pytest.mark.parametrize("pattern", ["layers.0.up.weight", "layers.0", "up", "re:up", "re:.*norm"])
def test_a_pattern_that_names_no_layer(pattern):
    with pytest.raises(PatternError, match=re.escape(repr(pattern))):
        qat.apply_fake_quantization(Model(), "int8", [r"re:.*\.down", pattern])


@pytest.mark.parametrize("name", ["eh_proj", "model.layers.9.eh_proj", "self_attn.indexer.wk"])
def test_layers_that_vllm_builds_without_quantization(name):
    assert keeps_its_dtype(name) and not keeps_its_dtype(name + "2")


def test_a_head_that_the_model_names_itself():
    model = Model()
    model.get_output_embeddings = lambda: model.layers[1].up
    assert "layers.1.up" in qat.apply_fake_quantization(model, "int8").unquantized


def test_without_fake_quantization_inside():
    model, reference = model_with_its_reference()
    plain = copy.deepcopy(model)
    qat.apply_fake_quantization(model, "int8")
    ids = torch.arange(11)
    with pytest.raises(ZeroDivisionError), qat.without_fake_quantization(model):
        assert torch.equal(model(ids), plain(ids))
        raise ZeroDivisionError
    assert torch.equal(model(ids), reference(ids))


def test_a_forward_that_fails_leaves_the_weights_in_place():
    layer = nn.Linear(64, 8)
    qat.apply_fake_quantization(nn.Sequential(layer), "int8")
    with pytest.raises(RuntimeError):
        layer(torch.ones(2, 63))
    assert isinstance(layer.weight, nn.Parameter) and "weight" not in vars(layer)


def test_a_layer_that_the_scheme_cannot_hold_is_named_and_nothing_is_changed():
    model, _ = model_with_its_reference()
    with pytest.raises(ValueError, match=r"layers\.0\.up\.weight: rows of 64 elements .* groups of 128: choose"):
        qat.apply_fake_quantization(model, "int4_g128")
    assert qat.apply_fake_quantization(model, "int8").quantized == QUANTIZED


def test_twice_or_nothing_or_another_forward():
    model = Model()
    qat.apply_fake_quantization(model, "int8")
    with pytest.raises(ValueError, match=r"layers\.0\.up\.weight is fake-quantized already"):
        qat.apply_fake_quantization(model, "int8")
    with pytest.raises(ValueError, match=r"no layer .*: none"):
        qat.apply_fake_quantization(nn.Embedding(3, 4), "int8")
    model = Model()
    model.layers[1].down.forward = lambda x: x
    with pytest.raises(ValueError, match=line_naming("layers.1.down.weight:", "forward")):
        qat.apply_fake_quantization(model, "int8")


class OldExperts(nn.Module):
    """Experts' tensors of a class that does not say how they lie."""

    def __init__(self, turned, gated=True):
        super().__init__()
        up, down = (64, 96), (32 * 3 // (2 if gated else 1), 64)  # (input, output)
        up_name = "gate_up_proj" if gated else "up_proj"
        for name, shape in ((up_name, up), ("down_proj", down)):
            setattr(self, name, nn.Parameter(torch.randn(3, *(shape if turned else shape[::-1]))))

    def forward(self):
        return tuple(getattr(self, name) for name in self._parameters)


@pytest.mark.parametrize("turned", [False, True])
def test_experts_lie_as_their_shapes_show(turned):
    experts = OldExperts(turned)
    qat.apply_fake_quantization(nn.ModuleDict({"experts": experts}), "int8")
    for found, w in zip(experts(), (experts.gate_up_proj, experts.down_proj), strict=True):
        rows = w.transpose(1, 2) if turned else w
        assert torch.equal(found, engine_weight(rows, "int8").transpose(1, 2) if turned else engine_weight(w, "int8"))


@pytest.mark.parametrize("turned", [False, True])
def test_experts_lie_as_their_class_says(turned):
    experts = OldExperts(turned, gated=False)
    experts.is_transposed = turned
    qat.apply_fake_quantization(experts, "int8")
    w, rows = experts.up_proj, (1, 2) if turned else (0, 0)
    assert torch.equal(experts()[0], engine_weight(w.transpose(*rows), "int8").transpose(*rows))


def test_experts_whose_tensors_could_lie_either_way():
    with pytest.raises(ValueError, match=line_naming("OldExperts", "(is_transposed)")):
        qat.apply_fake_quantization(OldExperts(False, gated=False), "int8")


@pytest.mark.parametrize(
    ("variables", "scheme"),
    [
        ({}, None),
        ({"OPEN_TRAINING_INT4_GROUP_SIZE": "32"}, None),
        ({"OPEN_TRAINING_INT4_FAKE_QAT_FLAG": "0"}, None),
        ({"OPEN_TRAINING_INT4_FAKE_QAT_FLAG": "1"}, "int4_g128"),
        ({"OPEN_TRAINING_INT4_FAKE_QAT_FLAG": "1", "OPEN_TRAINING_INT4_GROUP_SIZE": "128"}, "int4_g128"),
        ({"OPEN_TRAINING_INT4_FAKE_QAT_FLAG": "1", "OPEN_TRAINING_INT4_GROUP_SIZE": "32"}, "int4_g32"),
    ],
)
def test_slimes_variables(variables, scheme):
    assert qat.scheme_of_environment(variables) == scheme


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"OPEN_TRAINING_INT4_FAKE_QAT_FLAG": "true"}, "FLAG='true': valid are 1"),
        (
            {"OPEN_TRAINING_INT4_FAKE_QAT_FLAG": "1", "OPEN_TRAINING_INT4_GROUP_SIZE": "64"},
            "'64': valid are 32 and 128",
        ),
    ],
)
def test_slimes_variables_with_values_that_are_not_valid(variables, words):
    with pytest.raises(QatVariableError, match=words):
        qat.scheme_of_environment(variables)
