"""What quantization does to a layer's output, against the oracle's product and experts; the layers, worst first."""

import pytest
import torch

from ascend_quant import oracle
from ascend_quant.kernels import cpu
from ascend_quant.mismatch import layer_errors
from ascend_quant.mismatch.layer_errors import EXACT, extra_bytes, mixture, product, ranked
from ascend_quant.schemes import SCHEMES, Scheme

QUANTIZED = [scheme for scheme in SCHEMES.values() if scheme.quantized]
BY_WHOLE_ROWS = [scheme for scheme in QUANTIZED if scheme.shares in ("row", "tensor")]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool((found.double() - wanted.double()).norm() < 1e-5 * wanted.double().norm())


def by_name(schemes: list[Scheme]):
    return pytest.mark.parametrize("scheme", schemes, ids=lambda scheme: scheme.name)


@by_name(QUANTIZED)
def test_products_are_the_oracles(scheme, monkeypatch):
    """In one piece, and in pieces of 128 rows; rows differ in size, and so do blocks and groups."""
    x, w = normal(9, 256), normal(300, 256, seed=1)
    w[::3] *= 1e-3
    w[:, 128:] *= 100
    w[128:] *= 10
    exact = x.double() @ w.double().T
    for elements in (1 << 23, 7):
        monkeypatch.setattr(layer_errors, "ELEMENTS", elements)
        found = product(x, w, scheme)
        assert close(product(x, w, EXACT), exact) and not close(found, exact)
        assert close(found, oracle.product(x, *oracle.quantize(w, scheme), scheme))


@by_name(QUANTIZED)
def test_a_slice_of_the_inputs_takes_the_scales_of_whole_rows(scheme, monkeypatch):
    """Blocks and groups are its own, as on a rank of the engine: what the other ranks' rows hold does not matter."""
    monkeypatch.setattr(layer_errors, "ELEMENTS", 20)
    x, w = normal(5, 128), normal(200, 256, seed=1)
    w[:, 200:] *= 4
    absmax = w.abs().amax(-1).float()
    codes, scale = oracle.quantize(w if scheme in BY_WHOLE_ROWS else w[:, :128], scheme)
    if scheme in BY_WHOLE_ROWS:
        codes = codes[:, :128]
    assert close(product(x, w[:, :128], scheme, absmax), oracle.product(x, codes, scale, scheme))


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
def test_the_bytes_that_a_layer_costs(scheme):
    for shape in ((6, 10, 256), (300, 384)):
        weight, held = torch.zeros(shape, dtype=torch.bfloat16), cpu.storage(scheme, shape)
        assert extra_bytes(weight, scheme) == weight.nbytes - held.codes.nbytes - held.scale.nbytes


def test_layers_are_ranked_by_the_mean_square_over_tokens_and_ranks():
    def seen(name: str, error: list[float], norm: list[float]) -> dict:
        return {"name": name, "error": error, "norm": norm, "extra_bytes": 10}

    first = [seen("a", [1.0, 4.0], [50.0, 50.0]), seen("b", [9.0, 0.0], [100.0, 0.0]), seen("unseen", [], [])]
    second = [seen("a", [1.0, 4.0], [50.0, 750.0]), seen("b", [0.0, 0.0], [0.0, 0.0]), seen("unseen", [], [])]
    b, a = ranked([first, second])
    assert (a.name, b.name) == ("a", "b")
    squares = (2 / 100 + 8 / 800) / 2, 9 / 100  # a token without output says nothing
    assert (a.error, b.error) == pytest.approx(tuple(square**0.5 for square in squares))
    assert a.worst == pytest.approx((2 / 100) ** 0.5)
    assert (a.share, b.share) == pytest.approx(tuple(square / sum(squares) for square in squares))
    assert a.extra_bytes == 20
