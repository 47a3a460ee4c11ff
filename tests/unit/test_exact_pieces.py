"""Each piece of an exact trainer: forward the engine's function, backward torch's own gradients at the same inputs."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from ascend_quant import oracle
from ascend_quant.exact import attention, experts, linear, packing
from ascend_quant.exact.attention import by_sequence
from ascend_quant.exact.straight_through import gradients_of, straight_through
from ascend_quant.kernels import engine_products
from ascend_quant.kernels.cpu.serve import matmul


def bf16(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16().requires_grad_()


def assert_same_gradients(found, expected, tensors, tolerance=0.0):
    """For a random gradient of the results."""
    grad = bf16(*expected.shape, seed=9).detach().to(expected.dtype)
    for one, other in zip(*(torch.autograd.grad(y, tensors, grad) for y in (found, expected)), strict=True):
        assert one.dtype == other.dtype and (one - other).abs().max() <= tolerance


def test_values_of_one_function_with_gradients_of_another():
    x, w = bf16(3, 4), bf16(4, seed=1)
    found = straight_through(lambda x, w: x.sign() * w, gradients_of(lambda x, w: x.exp() * w), x, w)
    assert torch.equal(found, x.sign() * w)
    assert_same_gradients(found, x.exp() * w, (x, w))


def test_the_engines_function_knows_no_autocast_and_no_graph():
    seen = []

    def engine(x):
        seen.append((torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()))
        return x.clone()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        straight_through(engine, gradients_of(torch.exp), bf16(3))
    assert seen == [(False, False)]


@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_layer(bias):
    x, w, b = bf16(2, 5, 48), bf16(8, 48, seed=1), bf16(8, seed=2)
    layer = nn.Linear(48, 8, bias=bias)
    layer.weight = nn.Parameter(w.detach())
    if bias:
        layer.bias = nn.Parameter(b.detach())
    layer.__class__, layer.ranks = linear.ExactLinear, 1
    expected = oracle.matmul(x.detach().view(10, 48), *oracle.quantize_rows(w.detach()), b.detach() if bias else None)
    found = layer(x)
    assert torch.equal(found, expected.bfloat16().view(2, 5, 8))
    tensors = (x, *layer.parameters())
    assert_same_gradients(found, F.linear(x, layer.weight, layer.bias), tensors, tolerance=2.0**-5)


def test_two_ranks_round_their_slices_and_add_up_in_bf16():
    x, w, b = bf16(7, 48).detach(), bf16(8, 48, seed=1).detach(), bf16(8, seed=2).detach()
    codes, scale = oracle.quantize_rows(w)
    halves = [
        oracle.matmul(x[:, part], codes[:, part], scale, own).bfloat16()
        for part, own in ((slice(24), b), (slice(24, 48), None))
    ]
    found = linear.product(x, w, b, ranks=2)
    assert torch.equal(found, halves[0] + halves[1])
    assert not torch.equal(found, linear.product(x, w, b))


@pytest.mark.parametrize("x, w", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)])
def test_other_dtypes_than_the_engines_are_refused(x, w):
    with pytest.raises(TypeError, match=r"torch\.float32"):
        linear.product(torch.ones(2, 4, dtype=x), torch.ones(3, 4, dtype=w))


def test_two_ranks_of_experts():
    """Each rank has a slice of gate, up and down of every expert."""
    x, w13, w2 = bf16(6, 16).detach(), bf16(3, 24, 16, seed=1).detach(), bf16(3, 16, 12, seed=2).detach()
    weight, expert = torch.rand(6, 2, generator=torch.Generator().manual_seed(3)), torch.tensor([[0, 2]] * 6)
    (c13, s13), (c2, s2) = oracle.quantize_rows(w13), oracle.quantize_rows(w2)
    parts = []
    for rank in range(2):
        rows = [*range(6 * rank, 6 * rank + 6), *range(12 + 6 * rank, 18 + 6 * rank)]
        own = c2[:, :, 6 * rank : 6 * rank + 6]
        parts.append(oracle.experts(x, weight, expert, c13[:, rows], s13[:, rows], own, s2).bfloat16())
    assert torch.equal(experts.product(x, weight, expert, w13, w2, ranks=2), parts[0] + parts[1])


def naive(q, k, v, sequences, scale):
    """Causal attention within each sequence, in float32."""
    group, outs = q.shape[1] // k.shape[1], []
    for a, b, c in zip(*(x.float().split(sequences.lengths) for x in (q, k, v)), strict=True):
        scores = torch.einsum("qhd,khd->hqk", a, b.repeat_interleave(group, 1)) * scale
        scores = scores.masked_fill(torch.ones(len(a), len(a)).triu(1).bool(), -torch.inf)
        outs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), c.repeat_interleave(group, 1)))
    return torch.cat(outs)


def vllms():
    """The product that vLLM's adapter registers on a CPU."""
    pytest.importorskip("vllm", reason="attention is vLLM's")
    from ascend_quant.integrations.vllm.layers import register_products

    register_products("cpu")


def test_attention_is_the_engines_with_torchs_gradients():
    vllms()
    sequences = packing.from_positions(torch.cat([torch.arange(n) for n in (1, 7, 150)]).view(1, -1), (1, 158))
    q, k, v = bf16(158, 4, 32), bf16(158, 2, 32, seed=1), bf16(158, 2, 32, seed=2)
    found = by_sequence(q, k, v, sequences, None)
    torch.testing.assert_close(found.float(), naive(q, k, v, sequences, 32**-0.5), rtol=0, atol=2.0**-6)
    assert_same_gradients(found, packing.one_at_a_time(q, k, v, sequences.lengths, None), (q, k, v))


def test_a_rows_attention_does_not_depend_on_the_packing():
    vllms()
    q, k, v = bf16(300, 4, 32).detach(), bf16(300, 2, 32, seed=1).detach(), bf16(300, 2, 32, seed=2).detach()

    def of(lengths, part):
        offsets = torch.tensor([0, *lengths]).cumsum(0).int()
        return by_sequence(q[part], k[part], v[part], packing.Sequences(offsets, lengths), None)

    together = of((100, 200), slice(300))
    assert torch.equal(together[100:], of((200,), slice(100, 300)))
    assert torch.equal(together[100:150], of((50,), slice(100, 150))), "later tokens"


class Layer(nn.Module):
    is_causal = True


@pytest.mark.parametrize(
    "given",
    [{"sliding_window": 4}, {"softcap": 30.0}, {"s_aux": torch.ones(4)}, {"dropout": 0.1}, {"is_causal": False}],
    ids=lambda given: next(iter(given)),
)
def test_attention_refuses_what_it_does_not_compute(given):
    q = torch.zeros(1, 4, 6, 32)
    with pytest.raises(NotImplementedError, match=next(iter(given))):
        attention.attention(Layer(), q, q, q, None, **given)


def test_attention_refuses_a_cache():
    q, k = torch.zeros(1, 4, 1, 32), torch.zeros(1, 4, 6, 32)
    with pytest.raises(NotImplementedError, match=r"\(1, 6\)"):
        attention.attention(Layer(), q, k, k, None)


def test_a_padded_batch_is_the_packed_one(monkeypatch):
    monkeypatch.setattr(engine_products, "_products", {"attention": naive})
    q, mask = torch.randn(2, 4, 6, 32), torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    found, weights = attention.attention(Layer(), q, q, q, mask)
    positions = torch.cat([torch.arange(4), torch.arange(6)]).unsqueeze(0)
    tokens = q.transpose(1, 2)[mask.bool()].unsqueeze(0).transpose(1, 2)
    expected, _ = attention.attention(Layer(), tokens, tokens, tokens, None, position_ids=positions)
    assert weights is None and torch.equal(found[mask.bool()], expected[0]) and not found[mask == 0].any()


def test_a_checkpointed_layer_has_the_same_bits_and_gradients():
    x, layer = bf16(5, 48), nn.Linear(48, 8).bfloat16()
    layer.__class__, layer.ranks = linear.ExactLinear, 1
    found = checkpoint(layer, x, use_reentrant=False)
    assert torch.equal(found, layer(x))
    assert torch.equal(found, matmul(x, *oracle.quantize_rows(layer.weight), layer.bias))
    assert_same_gradients(found, layer(x), (x, *layer.parameters()))
