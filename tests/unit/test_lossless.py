"""BF16 weights in three quarters of their bytes: the bits that come out are those that went in, on every device."""

import pytest
import torch

from ascend_quant.kernels import lossless_rows
from ascend_quant.kernels.lossless_rows import BELOW, FAR, TAIL
from ascend_quant.refit import RefitError, lossless

NAME = "lm_head.weight"


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int16)


def number(sign: int, exponent: int, mantissa: int) -> int:
    """Of BF16's fields, as a signed integer of 16 bits."""
    found = sign << 15 | exponent << 7 | mantissa
    return found - (1 << 16) if sign else found


def same(kernels, w_NK: torch.Tensor) -> bool:
    """Whether a weight fits, and every bit comes out again; all devices make the same bytes of it."""
    sent, most = kernels.module.pack(w_NK.to(kernels.device))
    wanted, most_wanted = lossless_rows.pack(w_NK)
    assert torch.equal(sent.cpu(), wanted) and most.item() == most_wanted.item()
    return int(most) <= FAR and torch.equal(bits(kernels.module.unpack(sent).cpu()), bits(w_NK))


def all_kinds(scale: float) -> torch.Tensor:
    torch.manual_seed(0)
    w = (torch.randn(40, 896) * scale).bfloat16()
    w[1], w[2, ::2], w[3] = 0, 0, -0.0
    w[4, :3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    w[5, 7] = 1e-39  # subnormal
    w[6, :20] *= 1e4
    return w


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Matrices of a test are worth packing, and their rows are packed few at a time."""
    monkeypatch.setattr(lossless, "LEAST", 1)
    monkeypatch.setattr(lossless_rows, "AT_ONCE", 1000)


@pytest.mark.parametrize("first", range(0, 256, 15))
def test_every_number_comes_out_as_it_went_in(kernels, first):
    exponents = range(first, min(first + 15, 256))
    row = [number(sign, e, mantissa) for mantissa in range(128) for e in exponents for sign in (0, 1)]
    middle = number(0, min(first + BELOW, 255), 5)
    given = torch.tensor([row + [middle] * 3 * len(row)], dtype=torch.int16)  # so that the median is where it is
    assert same(kernels, given.view(torch.bfloat16))


@pytest.mark.parametrize("scale", [1e-30, 0.02, 1e30])
def test_rows_of_all_kinds(kernels, scale):
    w = all_kinds(scale)
    assert same(kernels, w) and same(kernels, w.t()[:40, :40].contiguous()) and same(kernels, w[:, ::2])
    assert same(kernels, torch.randn(2, 2500).bfloat16())  # which ends within what is taken at a time
    assert kernels.module.pack(w.to(kernels.device))[0].nbytes == 40 * (896 // 2 * 3 + 96)


@pytest.mark.parametrize("where", [range(400 - FAR, 400), range(0, 2 * FAR, 2), range(1, 2 * FAR, 2)])
def test_as_many_others_as_a_row_has_room_for(kernels, where):
    w = torch.full((3, 400), 0.5).bfloat16()
    w[1, list(where)] = 1e-20
    assert same(kernels, w)
    w[1, 399 if where[-1] < 399 else 0] = 1e-20
    assert not same(kernels, w)
    assert lossless.as_packed(NAME, w) == (NAME, w)


@pytest.mark.parametrize("first", [0, 1, 3])
def test_a_transport_may_put_rows_at_any_byte(kernels, first):
    w = all_kinds(0.02)
    sent, _ = kernels.module.pack(w.to(kernels.device))
    bytes_ = torch.cat((torch.zeros(first, dtype=torch.uint8, device=kernels.device), sent.view(-1)))
    assert torch.equal(bits(kernels.module.unpack(bytes_[first:].view(sent.shape)).cpu()), bits(w))


def test_damaged_rows_become_other_numbers(kernels):
    """What is wrong is for the proof to say: here nothing is read or written elsewhere."""
    w = all_kinds(0.02)
    sent, _ = kernels.module.pack(w.to(kernels.device))
    sent[1, -TAIL:], sent[2, -TAIL:], sent[3] = 255, torch.arange(100, 100 + TAIL), 255
    found, wanted = kernels.module.unpack(sent), lossless_rows.unpack(sent.cpu())
    assert torch.equal(bits(found.cpu()), bits(wanted))
    assert torch.equal(bits(wanted[4:]), bits(w[4:])) and not torch.equal(bits(wanted[1:4]), bits(w[1:4]))


@pytest.mark.parametrize(
    "given",
    [
        torch.ones(4, 402).bfloat16(),
        torch.ones(4, 192).bfloat16(),  # as many bytes packed as not
        torch.ones(4, 400),
        torch.ones(4, 400).half(),
        torch.ones(1600).bfloat16(),
        torch.ones(2, 2, 400).bfloat16(),
        torch.ones(1, (1 << 16) + 4).bfloat16(),
    ],
    ids=lambda w: f"{w.dtype} {tuple(w.shape)}",
)
def test_what_is_not_packed(given):
    assert lossless.as_packed(NAME, given) == (NAME, given)


def test_few_numbers_are_not_packed_nor_where_it_does_not_pay(monkeypatch):
    w = torch.ones(4, 400).bfloat16()
    assert lossless.as_packed(NAME, w)[0] == NAME + lossless.MARK
    monkeypatch.setattr("ascend_quant.kernels.cpu.PACKING_PAYS", False)
    assert lossless.as_packed(NAME, w)[0] == NAME
    monkeypatch.undo()
    assert lossless.as_packed(NAME, w)[0] == NAME  # of so few


def test_weights_go_and_come():
    torch.manual_seed(1)
    weights = [(NAME, torch.randn(8, 512).bfloat16()), ("norm.weight", torch.ones(512)), ("q:int8", torch.ones(4, 512))]
    sent = [*lossless.packed(weights)]
    assert [name for name, _ in sent] == ["lm_head.weight:packed", "norm.weight", "q:int8"]
    found = lossless.unpacked(sent)
    assert [name for name, _ in found] == [name for name, _ in weights]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(found, weights, strict=True))


@pytest.mark.parametrize(
    "wrong",
    [torch.zeros(4, 96, dtype=torch.uint8), torch.zeros(4, 99, dtype=torch.uint8), torch.zeros(99, dtype=torch.uint8),
     torch.zeros(4, 102, dtype=torch.int8)],
    ids=lambda w: f"{w.dtype} {tuple(w.shape)}",
)  # fmt: skip
def test_rows_that_are_none_are_refused_by_name(wrong):
    with pytest.raises(RefitError, match=NAME):
        lossless.unpacked([(NAME + lossless.MARK, wrong)])
