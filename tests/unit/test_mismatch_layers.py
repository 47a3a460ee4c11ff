"""What quantization does to a layer's output, against the oracle's product and experts; and which layers stand out."""

import pytest
import torch

from ascend_quant import oracle
from ascend_quant.kernels import cpu
from ascend_quant.mismatch import layer_errors
from ascend_quant.mismatch.culprits import culprits
from ascend_quant.mismatch.gaussian import expert_error, linear_error
from ascend_quant.mismatch.layer_errors import EXACT, extra_bytes, mixture, mixtures, product
from ascend_quant.mismatch.layers import LayerError, ranked
from ascend_quant.mismatch.suggestion import suggest
from ascend_quant.schemes import SCHEMES, Scheme

INT8 = SCHEMES["int8"]
QUANTIZED = [scheme for scheme in SCHEMES.values() if scheme.quantized]
BY_WHOLE_ROWS = [scheme for scheme in QUANTIZED if scheme.shares in ("row", "tensor")]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool((found.double() - wanted.double()).norm() < 1e-5 * wanted.double().norm())


def by_name(schemes: list[Scheme]):
    return pytest.mark.parametrize("scheme", schemes, ids=lambda scheme: scheme.name)


@by_name(QUANTIZED)
@pytest.mark.parametrize("elements", [1 << 23, 7])
def test_products_are_the_oracles(elements, scheme, monkeypatch):
    """In one piece, and in pieces of 128 rows; rows differ in size, and so do blocks and groups."""
    monkeypatch.setattr(layer_errors, "ELEMENTS", elements)
    x, w = normal(9, 256), normal(300, 256, seed=1)
    w[::3] *= 1e-3
    w[:, 128:] *= 100
    w[128:] *= 10
    exact = x.double() @ w.double().T
    assert close(product(x, w, EXACT), exact)
    found = product(x, w, scheme)
    assert close(found, oracle.product(x, *oracle.quantize(w, scheme), scheme))
    assert not close(found, exact)


@by_name(BY_WHOLE_ROWS)
@pytest.mark.parametrize("elements", [1 << 23, 20])
def test_a_slice_of_the_inputs_takes_the_scales_of_whole_rows(elements, scheme, monkeypatch):
    monkeypatch.setattr(layer_errors, "ELEMENTS", elements)
    x, w = normal(5, 16), normal(200, 32, seed=1)
    absmax = w.abs().amax(-1).float()
    codes, scale = oracle.quantize(w, scheme)
    assert close(product(x, w[:, :16], scheme, absmax), oracle.product(x, codes[:, :16], scale, scheme))


def test_a_slice_of_the_inputs_has_blocks_and_groups_of_its_own():
    """As on a rank of the engine; what the other ranks' rows hold does not matter."""
    x, w = normal(5, 128), normal(200, 256, seed=1)
    for scheme in (scheme for scheme in QUANTIZED if scheme not in BY_WHOLE_ROWS):
        wanted = oracle.product(x, *oracle.quantize(w[:, :128], scheme), scheme)
        assert close(product(x, w[:, :128], scheme, 100 * w.abs().amax(-1).float()), wanted)


def experts(hidden: int = 24, width: int = 10) -> tuple[torch.Tensor, ...]:
    x, w13, w2 = normal(11, hidden), normal(4, 2 * width, hidden, seed=1), normal(4, hidden, width, seed=2)
    w13[1:] *= 30  # experts differ
    w2[2:] *= 30
    expert = torch.tensor([[0, 2], [1, 3], [-1, 2]] * 4)[:11]  # -1: of another rank
    weight = torch.rand(11, 2, generator=torch.Generator().manual_seed(3))
    return x, weight, expert, w13, w2


@by_name(QUANTIZED)
def test_the_mixture_is_the_oracles(scheme):
    x, weight, expert, w13, w2 = experts(hidden=256, width=128)
    wanted = oracle.experts(x, weight, expert, *oracle.quantize(w13, scheme), *oracle.quantize(w2, scheme), scheme)
    assert close(mixture(x, weight, expert, w13, w2, scheme), wanted)


def test_the_exact_mixture_token_by_token():
    x, weight, expert, w13, w2 = experts()
    wanted = torch.zeros(11, 24, dtype=torch.float64)
    for token in range(11):
        for which, share in zip(expert[token].tolist(), weight[token].double(), strict=True):
            if which >= 0:
                gate, up = (w13[which].double() @ x[token].double()).chunk(2)
                wanted[token] += share * (w2[which].double() @ (gate * gate.sigmoid() * up))
    assert close(mixture(x, weight, expert, w13, w2, EXACT), wanted)


@by_name(BY_WHOLE_ROWS)
def test_expert_slices_take_the_scales_of_whole_rows(scheme):
    x, weight, expert, w13, w2 = experts()
    halves = [torch.cat([part.chunk(2, 1)[i] for part in w13.chunk(2, 1)], 1) for i in range(2)]
    absmax = w2.abs().amax(-1).float()
    codes, scale = oracle.quantize(w2, scheme)
    for i in range(2):
        given = mixture(x, weight, expert, halves[i], w2.chunk(2, -1)[i], scheme, absmax)
        pair = oracle.quantize(halves[i], scheme)
        assert close(given, oracle.experts(x, weight, expert, *pair, codes.chunk(2, -1)[i], scale, scheme))


@by_name(QUANTIZED)
@pytest.mark.parametrize("shape", [(6, 10, 256), (300, 384)])
def test_the_bytes_that_a_layer_costs(shape, scheme):
    weight, held = torch.zeros(shape, dtype=torch.bfloat16), cpu.storage(scheme, shape)
    assert extra_bytes(weight, scheme) == weight.nbytes - held.codes.nbytes - held.scale.nbytes


@by_name(QUANTIZED)
def test_mixtures_are_two_and_each_expert_has_its_error(scheme):
    x, weight, expert, w13, w2 = experts(hidden=256, width=128)
    rounded, exact, ratios = mixtures(x, weight, expert, w13, w2, scheme=scheme)
    assert torch.equal(rounded, mixture(x, weight, expert, w13, w2, scheme))
    assert torch.equal(exact, mixture(x, weight, expert, w13, w2, EXACT))
    assert set(ratios) == {0, 1, 2, 3}
    alone = [mixture(x, weight, torch.where(expert == 3, 3, -1), w13, w2, one) for one in (scheme, EXACT)]
    squares = [one.square().sum(-1) for one in (alone[0] - alone[1], alone[1])]
    assert ratios[3].tolist() == pytest.approx((squares[0] / squares[1])[squares[1] > 0].tolist(), rel=1e-5)


@by_name(QUANTIZED)
@pytest.mark.parametrize(("inputs", "gated"), [(256, False), (1024, False), (1024, True)])
def test_the_gaussian_layer_is_the_oracles(scheme, inputs, gated):
    """Other draws, another number of outputs, float64."""
    generator = torch.Generator().manual_seed(7)
    x, up = torch.randn(2, 256, inputs, generator=generator)
    x = (x * x.sigmoid() * up if gated else x).bfloat16()
    w = torch.randn(384, inputs, generator=generator).bfloat16()
    exact = x.double() @ w.double().T
    error = oracle.product(x, *oracle.quantize(w, scheme), scheme).double() - exact
    wanted = (error.square().sum(-1) / exact.square().sum(-1)).mean().sqrt().item()
    assert linear_error(scheme.name, inputs, gated) == pytest.approx(wanted, rel=0.1)


def test_the_error_of_a_gaussian_int8_layer_follows_from_its_steps():
    """A step is 2 * absmax / 254, its square error a twelfth of its square; weights and activations add up."""
    inputs = 1024
    absmax = torch.randn(4096, inputs, generator=torch.Generator().manual_seed(1)).abs().amax(-1)
    one = (absmax / 127).square().mean() / 12
    assert linear_error("int8", inputs) == pytest.approx((2 * one.item()) ** 0.5, rel=0.03)


def test_the_gaussian_expert_is_the_oracles():
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(256, 128, generator=generator).bfloat16()
    w13 = (torch.randn(1, 192, 128, generator=generator) / 128**0.5).bfloat16()
    w2 = torch.randn(1, 128, 96, generator=generator).bfloat16()
    routed = torch.ones(256, 1), torch.zeros(256, 1, dtype=torch.long)
    gate, up = (x.double() @ w13[0].double().T).chunk(2, -1)
    exact = (gate * gate.sigmoid() * up) @ w2[0].double().T
    found = oracle.experts(x, *routed, *oracle.quantize(w13, INT8), *oracle.quantize(w2, INT8), INT8)
    wanted = ((found - exact).square().sum(-1) / exact.square().sum(-1)).mean().sqrt().item()
    assert expert_error("int8", 128, 96) == pytest.approx(wanted, rel=0.1)


def seen(name: str, error: list[float], norm: list[float], cost: int = 10) -> dict:
    none = {"channels": [], "gain": 1.0}
    return {
        "name": name, "error_squared": error, "norm_squared": norm, "extra_bytes": cost, "shape": [64],
        "experts": [], "inputs": none, "columns": none,
    }  # fmt: skip


def test_layers_are_ranked_by_the_mean_square_over_tokens_and_ranks():
    first = [seen("a", [1.0, 4.0], [50.0, 50.0]), seen("b", [9.0, 0.0], [100.0, 0.0])]
    second = [seen("a", [1.0, 4.0], [50.0, 750.0]), seen("b", [0.0, 0.0], [0.0, 0.0])]
    b, a = ranked([first, second], "int8")
    assert (a.name, b.name) == ("a", "b")
    squares = (2 / 100 + 8 / 800) / 2, 9 / 100  # a token without output says nothing
    assert (a.error, b.error) == pytest.approx(tuple(square**0.5 for square in squares))
    assert a.worst == pytest.approx((2 / 100) ** 0.5)
    assert (a.share, b.share) == pytest.approx(tuple(square / sum(squares) for square in squares))
    assert a.extra_bytes == 20
    assert a.times == pytest.approx(a.error / linear_error("int8", 64))


def test_experts_add_up_over_ranks_and_few_tokens_do_not_count():
    first, second = seen("a", [1.0], [100.0]), seen("a", [1.0], [100.0])
    first["experts"], second["experts"] = [[0, 0.4, 10], [5, 9.0, 7]], [[0, 0.8, 20], [1, 0.09, 9]]
    second["inputs"] = {"channels": [70], "gain": 9.0}
    (layer,) = ranked([[first], [second]], "int8")
    gaussian = linear_error("int8", 64)
    assert dict(layer.experts) == pytest.approx({0: 0.2 / gaussian, 1: 0.1 / gaussian})
    assert (layer.channels, layer.gain) == ((70,), 9.0)


def layers(*errors: float, gaussian: float = 0.15) -> list[LayerError]:
    total = sum(error**2 for error in errors)
    return [
        LayerError(f"layer{i}", error, error, error**2 / total, 100 + i, gaussian) for i, error in enumerate(errors)
    ]


def suggested(given: list[LayerError]):
    return suggest(culprits(given), given)


@pytest.mark.parametrize(
    ("errors", "names"),
    [
        ((), []),
        ((0.01,), []),
        ((0.01,) * 8, []),
        ((0.01, 0.011, 0.009, 0.0105, 0.0095, 0.012), []),  # all alike
        ((0.0200, *(0.01,) * 9), []),  # above 5 deviations of zero, but not far from the median
        ((0.010, 0.011, 0.2, 0.009, 0.010), ["layer2"]),
        ((0.010, 0.011, 0.2, 0.009, 0.010, 0.01, 0.3, 0.012), ["layer2", "layer6"]),
        ((0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.12), []),  # 3.4 medians, but layers differ widely
        ((0.01, 0.01, 0.031, 0.01, 0.01, 0.01, 1.0, 0.01), ["layer6"]),  # beside which the other one hardly counts
    ],
)
def test_what_stands_out(errors, names):
    found = suggested(layers(*errors))
    assert found.layers == names
    chosen = [layer for layer in layers(*errors) if layer.name in names]
    assert found.extra_bytes == sum(layer.extra_bytes for layer in chosen)
    assert found.share == pytest.approx(sum(layer.share for layer in chosen))


@pytest.mark.parametrize(("gaussian", "names"), [(0.013, []), (0.011, ["layer2"])])
def test_what_has_less_than_a_gaussian_layers_error_is_not_to_blame(gaussian, names):
    """As in the demo's trained model, whose layers have from a quarter to three quarters of it."""
    assert suggested(layers(0.003, 0.002, 0.012, 0.004, 0.003, 0.002, 0.003, 0.002, gaussian=gaussian)).layers == names


@pytest.mark.parametrize(("gaussian", "blamed"), [(0.013, []), (0.011, ["down_proj"])])
def test_nor_is_a_kind(gaussian, blamed):
    errors = {"qkv_proj": 0.003, "o_proj": 0.002, "gate_up_proj": 0.003, "down_proj": 0.012}
    named = {f"{block}.{leaf}": error for leaf, error in errors.items() for block in range(5)}
    share = sum(error**2 for error in named.values())
    found = culprits([LayerError(name, e, e, e**2 / share, 1, gaussian) for name, e in named.items()])
    assert [(one.what, one.name) for one in found] == [("kind", name) for name in blamed]


def model() -> list[LayerError]:
    """Eight blocks of four layers with an error of 1 % to 1.07 %; down_proj three times as much."""
    errors = {}
    for block in range(8):
        for leaf in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"):
            errors[f"{block}.{leaf}"] = (0.01 + block / 10000) * (3 if leaf == "down_proj" else 1)
    total = sum(error**2 for error in errors.values())
    return [LayerError(name, error, error, error**2 / total, 1, 0.15) for name, error in errors.items()]


def test_a_layer_stands_out_among_its_kind():
    assert suggested(model()).layers == []  # although each down_proj is three medians of all
    assert suggested([*model()[:-1], LayerError("7.down_proj", 0.2, 0.2, 0.8, 1, 0.15)]).layers == ["7.down_proj"]
