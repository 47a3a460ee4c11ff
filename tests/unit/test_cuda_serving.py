"""Each scheme's products on a GPU, from buffers that the refit's kernels have written, against the oracle's."""

import pytest
import torch

from ascend_quant import oracle
from ascend_quant.schemes import SCHEMES

pytest.importorskip("vllm")
pytestmark = pytest.mark.gpu

QUANTIZED = [scheme for scheme in SCHEMES.values() if scheme.quantized]
ERROR = 0.006  # of the norm: the output is rounded to BF16


@pytest.fixture(autouse=True, scope="module")
def by_vllm():
    """As vLLM's plugin does."""
    from ascend_quant.integrations.vllm.layers import register_products

    register_products("cuda")


def filled(scheme, w):
    """The buffers of weights (.., N, K), written by a refit's kernels."""
    from ascend_quant.kernels import cuda
    from ascend_quant.refit import Refit
    from ascend_quant.refit.scales import BY_SHARING

    with torch.device("cuda"):
        storage = cuda.storage(scheme, tuple(w.shape))
    data = storage.codes if storage.layout is None else torch.empty(w.shape, dtype=torch.int8, device="meta")
    resident = BY_SHARING[scheme.shares]("w", data, storage.scale, w.shape[-1], layout=storage.layout)
    refit = Refit([resident])
    with refit.session():
        for i, matrix in enumerate(w if w.dim() == 3 else [w]):
            slot = refit.batch.new_sources([(f"w{i}", matrix.numel())])
            refit.write(slot, resident, data[i] if w.dim() == 3 else data, matrix, base=matrix)
    assert refit.digest() == refit.last_receipt.digest
    return storage


def close(found, expected):
    error = (found.float() - expected.float()).norm() / expected.float().norm()
    assert torch.isfinite(found).all() and error < ERROR, float(error)


@pytest.mark.parametrize("scheme", QUANTIZED, ids=lambda scheme: scheme.name)
@pytest.mark.parametrize(("tokens", "length"), [(1, 512), (17, 128), (300, 512)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_layers(scheme, tokens, length, with_bias):
    from ascend_quant.kernels import serving_of

    generator = torch.Generator(device="cuda").manual_seed(0)
    w = torch.randn(448, length, device="cuda", generator=generator).bfloat16()
    x = torch.randn(tokens, length, device="cuda", generator=generator).bfloat16()
    bias = torch.randn(448, device="cuda", generator=generator).bfloat16() if with_bias else None
    storage = filled(scheme, w)
    linear = serving_of(scheme, w.device).linear
    found = linear(x, storage.codes, storage.served_scale, bias)
    close(found, oracle.product(x, *oracle.quantize(w, scheme), scheme, bias))
    graph, again = torch.cuda.CUDAGraph(), None
    with torch.cuda.graph(graph):
        again = linear(x, storage.codes, storage.served_scale, bias)
    x.mul_(2)
    graph.replay()
    close(again, oracle.product(x, *oracle.quantize(w, scheme), scheme, bias))


@pytest.mark.parametrize("scheme", QUANTIZED, ids=lambda scheme: scheme.name)
@pytest.mark.parametrize(("tokens", "width"), [(1, 256), (33, 256), (33, 128)])
def test_experts(scheme, tokens, width):
    from ascend_quant.kernels import serving_of

    generator = torch.Generator(device="cuda").manual_seed(0)
    w13 = torch.randn(8, 2 * width, 256, device="cuda", generator=generator).bfloat16()
    w2 = torch.randn(8, 256, width, device="cuda", generator=generator).bfloat16()
    x = torch.randn(tokens, 256, device="cuda", generator=generator).bfloat16()
    expert = torch.stack([torch.randperm(8, device="cuda", generator=generator)[:2] for _ in range(tokens)]).int()
    weight = torch.rand(tokens, 2, device="cuda", generator=generator)
    first, second = filled(scheme, w13), filled(scheme, w2)
    buffers = (first.codes, first.served_scale, second.codes, second.served_scale)
    found = serving_of(scheme, x.device).experts(x, weight, expert, *buffers)
    pairs = (*oracle.quantize(w13, scheme), *oracle.quantize(w2, scheme))
    expected = oracle.experts(x, weight, expert, *pairs, scheme)
    # the intermediate is rounded to BF16 and quantized again
    error = (found.float() - expected).norm() / expected.norm()
    assert torch.isfinite(found).all() and error < 0.03, float(error)
