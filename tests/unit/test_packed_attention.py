"""Packed attention against the same sequences one at a time: logits and every gradient, in float32 on the CPU.

The GPU's kernel is compared in tests/gpu; here, on tensors without storage, that it is called as it wants to be.
"""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("verl", reason="packed attention is the verl adapter's")

import transformers

from ascend_quant.exact import packing
from ascend_quant.integrations.verl.training import packed_attention
from ascend_quant.integrations.verl.training.attention_settings import PACKED

LENGTHS = (1, 7, 30, 12)
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 100, "head_dim": 16}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
WINDOW = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}  # the second layer has it
CONFIGS = {
    "qwen2": (transformers.Qwen2Config, HEADS),
    "qwen2, window": (transformers.Qwen2Config, {**HEADS, **WINDOW}),
    "qwen3": (transformers.Qwen3Config, {"num_attention_heads": 6, "num_key_value_heads": 2}),
    "qwen3-moe": (transformers.Qwen3MoeConfig, {**HEADS, **EXPERTS}),
}


def models(kind: str, checkpointing: bool = False):
    """The same model with our attention and with transformers' own."""
    config, more = CONFIGS[kind]
    torch.manual_seed(0)
    both = [
        transformers.AutoModelForCausalLM.from_config(config(**SIZES, **more, attn_implementation=name)).train()
        for name in (PACKED, "sdpa")
    ]
    both[1].load_state_dict(both[0].state_dict())
    if checkpointing:
        both[0].gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return both


def texts(lengths=LENGTHS) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randint(0, 100, (1, length)) for length in lengths]


def packed(model, sequences) -> torch.Tensor:
    """(T, V); as verl calls a model."""
    positions = torch.cat([torch.arange(one.shape[1]) for one in sequences]).unsqueeze(0)
    return model(
        input_ids=torch.cat(sequences, 1), position_ids=positions, attention_mask=None, use_cache=False
    ).logits[0]


def padded(model, sequences, side: str) -> torch.Tensor:
    """(T, V) of a padded batch's true tokens."""
    longest = max(one.shape[1] for one in sequences)
    fill = [(longest - one.shape[1], 0) if side == "left" else (0, longest - one.shape[1]) for one in sequences]
    ids = torch.cat([F.pad(one, by, value=3) for one, by in zip(sequences, fill, strict=True)])
    mask = torch.cat([F.pad(torch.ones_like(one), by) for one, by in zip(sequences, fill, strict=True)])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    return model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits[mask.bool()]


def one_at_a_time(model, sequences) -> torch.Tensor:
    return torch.cat([model(input_ids=one, use_cache=False).logits[0] for one in sequences])


def assert_same(ours, theirs, found: torch.Tensor, expected: torch.Tensor) -> None:
    """Logits, and the gradients that a random direction gives."""
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    direction = torch.randn_like(expected)
    (found * direction).sum().backward()
    (expected * direction).sum().backward()
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        error = (one.grad - other.grad).norm() / other.grad.norm()
        assert error < 1e-5, f"{name}: {error}"


@pytest.mark.parametrize("kind", CONFIGS)
def test_packed_sequences(kind: str):
    ours, theirs = models(kind)
    assert_same(ours, theirs, packed(ours, texts()), one_at_a_time(theirs, texts()))


@pytest.mark.parametrize("lengths", [(9,), (1,), (8, 8, 8)])
def test_a_lone_sequence_and_equal_ones(lengths: tuple[int, ...]):
    ours, theirs = models("qwen2")
    assert_same(ours, theirs, packed(ours, texts(lengths)), one_at_a_time(theirs, texts(lengths)))


@pytest.mark.parametrize("kind", ["qwen2, window", "qwen3"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_batch(kind: str, side: str):
    ours, theirs = models(kind)
    assert_same(ours, theirs, padded(ours, texts(), side), one_at_a_time(theirs, texts()))


def test_a_batch_without_positions_or_padding():
    """transformers makes one row of positions for all rows."""
    ours, theirs = models("qwen2")
    rows = torch.cat(texts((9, 9)))
    found = ours(input_ids=rows, use_cache=False).logits.flatten(0, 1)
    assert_same(ours, theirs, found, one_at_a_time(theirs, texts((9, 9))))


def test_under_autocast_the_kernel_gets_one_dtype(monkeypatch):
    """As with verl's mixed precision: norms of queries and keys leave float32, and values are bfloat16."""
    given, compute = [], packed_attention.varlen
    monkeypatch.setattr(
        packed_attention, "varlen", lambda *a, **how: given.extend(x.dtype for x in a[:3]) or compute(*a, **how)
    )
    ours, theirs = models("qwen3")
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = packed(ours, texts()), one_at_a_time(theirs, texts())
    assert given == [torch.bfloat16] * 6
    torch.testing.assert_close(found.float(), expected.float(), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_lengths_are_read_once_a_micro_batch(checkpointing: bool, monkeypatch):
    read, times = packing.from_positions, []
    monkeypatch.setattr(packing, "from_positions", lambda *a: times.append(1) or read(*a))
    ours, theirs = models("qwen2", checkpointing)
    assert_same(ours, theirs, packed(ours, texts()), one_at_a_time(theirs, texts()))
    assert len(times) == 1
    packed(ours, texts())
    assert len(times) == 2


def test_positions_that_change_are_read_again():
    torch.manual_seed(0)
    q = torch.randn(1, 4, 8, 16)
    module = torch.nn.Module()
    positions = torch.arange(8).unsqueeze(0)
    call = lambda: packed_attention.packed_attention(module, q, q, q, None, is_causal=True, position_ids=positions)[0]  # noqa: E731
    whole = call()
    positions[0, 4:] -= 4
    torch.testing.assert_close(call()[:, :4], whole[:, :4], rtol=1e-5, atol=1e-6)  # a processor may add otherwise
    assert not torch.allclose(whole[:, 4:], call()[:, 4:], atol=1e-2)


def test_attention_to_both_sides():
    """As an image's tokens have it: no positions, not causal."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 9, 16).unbind()
    found, _ = packed_attention.packed_attention(torch.nn.Module(), q, k, v, None, is_causal=False)
    torch.testing.assert_close(found.transpose(1, 2), F.scaled_dot_product_attention(q, k, v), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "asked, said",
    [
        ({"dropout": 0.1}, "dropout=0.1"),
        ({"softcap": 50.0}, "softcap=50.0"),
        ({"s_aux": torch.zeros(4)}, r"s_aux=\(4,\)"),
        ({"position_ids": None}, "position_ids=None"),
    ],
)
def test_what_the_kernel_cannot_do_is_refused(asked: dict, said: str):
    class Attention(torch.nn.Module):
        is_causal = True

    q = torch.zeros(1, 4, 8, 16)
    given = {"position_ids": torch.arange(8).unsqueeze(0), **asked}
    with pytest.raises(NotImplementedError, match=f"^Attention: .*{said}"):
        packed_attention.packed_attention(Attention(), q, q, q, None, **given)


def test_a_cache_is_refused():
    q, k = torch.zeros(1, 4, 1, 16), torch.zeros(1, 4, 8, 16)
    with pytest.raises(NotImplementedError, match=r"\(1, 8\)"):
        packed_attention.packed_attention(torch.nn.Module(), q, k, k, None, is_causal=True)


def test_padding_under_ulysses_is_refused(monkeypatch):
    monkeypatch.setattr(packed_attention.ulysses, "get_ulysses_sequence_parallel_world_size", lambda: 2)
    q, mask = torch.zeros(1, 4, 8, 16), torch.ones(1, 8)
    with pytest.raises(NotImplementedError, match=r"attention_mask=\(1, 8\)"):
        packed_attention.packed_attention(
            torch.nn.Module(), q, q, q, mask, is_causal=True, position_ids=torch.arange(8).unsqueeze(0)
        )


def test_a_device_without_a_kernel_is_refused():
    q = torch.zeros(1, 4, 8, 16, device="meta")
    with pytest.raises(NotImplementedError, match="device=meta"):
        packed_attention.packed_attention(torch.nn.Module(), q, q, q, None, is_causal=False)


@pytest.mark.parametrize("heads, pairs", [(28, 4), (4, 4), (5, 1)])
def test_the_gpus_kernel_is_called_as_it_wants(heads: int, pairs: int):
    """Forward and backward of torch's own operator, on tensors without storage."""
    q, k, v = (
        torch.zeros(12, h, 64, device="meta", dtype=torch.bfloat16, requires_grad=True) for h in (heads, pairs, pairs)
    )
    sequences = packing.Sequences(torch.zeros(3, dtype=torch.int32, device="meta"), (8, 8))
    out = packed_attention._flash_attention(q, k, v, sequences, (-1, 0), None)
    out.sum().backward()
    assert out.shape == q.shape
    assert [x.grad.shape for x in (q, k, v)] == [x.shape for x in (q, k, v)]
    with pytest.raises(NotImplementedError, match=r"torch\.float32"):
        packed_attention._flash_attention(q.float(), k.float(), v.float(), sequences, (-1, 0), None)


def test_long_sequences_go_one_at_a_time(monkeypatch):
    """Values and gradients against the padded batch's; and the GPU's way takes it from LONG tokens a sequence on."""
    torch.manual_seed(3)
    q, k, v = (torch.randn(21, h, 16, dtype=torch.float64, requires_grad=True) for h in (4, 2, 2))
    offsets = torch.tensor([0, 12, 21], dtype=torch.int32)
    sequences = packing.Sequences(offsets, (12, 9))
    expected = packed_attention._one_padded_batch(q, k, v, sequences, (-1, 0), None)
    found = packing.one_at_a_time(q, k, v, (12, 9), None)
    torch.testing.assert_close(found, expected)
    direction = torch.randn_like(expected)
    for one, other in zip(*(torch.autograd.grad(x, (q, k, v), direction) for x in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)

    monkeypatch.setattr(packed_attention, "varlen_attn", lambda *_, **__: "packed")
    half = [x.detach().bfloat16() for x in (q, k, v)]
    for long, packed_way in ((10, False), (11, True)):
        monkeypatch.setattr(packed_attention, "LONG", long)
        way = packed_attention._flash_attention(*half, sequences, (-1, 0), None)
        assert isinstance(way, str) == packed_way
    monkeypatch.setattr(packed_attention, "LONG", 10)
    assert packed_attention._flash_attention(*half, sequences, (4, 0), None) == "packed", "a window"
