"""BF16 weights in three quarters of their bytes: the bits that come out are those that went in."""

import pytest
import torch

from ascend_quant.refit import RefitError, packing

NAME = "lm_head.weight"


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int16)


def number(sign: int, exponent: int, mantissa: int) -> int:
    """Of BF16's fields, as a signed integer of 16 bits."""
    found = sign << 15 | exponent << 7 | mantissa
    return found - (1 << 16) if sign else found


def same(w_NK: torch.Tensor) -> bool:
    sent = packing.pack(w_NK)
    return sent is not None and torch.equal(bits(packing.unpack(NAME, sent)), bits(w_NK))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Matrices of a test are worth packing, and their rows are packed few at a time."""
    monkeypatch.setattr(packing, "LEAST", 1)
    monkeypatch.setattr(packing, "AT_ONCE", 1000)


@pytest.mark.parametrize("first", range(0, 256, 15))
def test_every_number_comes_out_as_it_went_in(first):
    exponents = range(first, min(first + 15, 256))
    row = [number(sign, e, mantissa) for mantissa in range(128) for e in exponents for sign in (0, 1)]
    middle = number(0, min(first + packing.BELOW, 255), 5)
    given = torch.tensor([row + [middle] * 3 * len(row)], dtype=torch.int16)  # so that the median is where it is
    assert same(given.view(torch.bfloat16))


@pytest.mark.parametrize("scale", [1e-30, 0.02, 1e30])
def test_rows_of_all_kinds(scale):
    torch.manual_seed(0)
    w = (torch.randn(40, 896) * scale).bfloat16()
    w[1], w[2, ::2], w[3] = 0, 0, -0.0
    w[4, :3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    w[5, 7] = 1e-39  # subnormal
    w[6, :20] *= 1e4
    assert same(w) and same(w.t()[:, :40].contiguous()) and same(w[:, ::2])
    assert packing.pack(w).nbytes == 40 * (896 // 2 * 3 + 96)


def test_as_many_others_as_a_row_has_room_for():
    w = torch.full((3, 400), 0.5).bfloat16()
    w[1, 399 - packing.FAR : 399] = 1e-20
    assert same(w)
    w[1, 399] = 1e-20
    assert packing.pack(w) is None
    assert packing.as_packed(NAME, w) == (NAME, w)


@pytest.mark.parametrize(
    "given",
    [
        torch.ones(4, 401).bfloat16(),
        torch.ones(4, 192).bfloat16(),  # as many bytes packed as not
        torch.ones(4, 400),
        torch.ones(4, 400).half(),
        torch.ones(1600).bfloat16(),
        torch.ones(2, 2, 400).bfloat16(),
        torch.ones(1, (1 << 16) + 2).bfloat16(),
    ],
    ids=lambda w: f"{w.dtype} {tuple(w.shape)}",
)
def test_what_is_not_packed(given):
    (pair,) = next(packing.packed([[(NAME, given)]]))
    assert pair == (NAME, given)


def test_few_numbers_are_not_packed(monkeypatch):
    w = torch.ones(4, 400).bfloat16()
    assert packing.as_packed(NAME, w)[0] == NAME + packing.MARK
    monkeypatch.setattr(packing, "LEAST", 1601)
    assert packing.as_packed(NAME, w)[0] == NAME


def test_groups_go_and_come():
    torch.manual_seed(1)
    group = [(NAME, torch.randn(8, 512).bfloat16()), ("norm.weight", torch.ones(512)), ("q:int8", torch.ones(4, 512))]
    (sent,) = packing.packed([group])
    assert [name for name, _ in sent] == ["lm_head.weight:packed", "norm.weight", "q:int8"]
    found = packing.unpacked(sent)
    assert [name for name, _ in found] == [name for name, _ in group]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(found, group, strict=True))


@pytest.mark.parametrize(
    "wrong",
    [torch.zeros(4, 96, dtype=torch.uint8), torch.zeros(4, 97, dtype=torch.uint8), torch.zeros(99, dtype=torch.uint8),
     torch.zeros(4, 99, dtype=torch.int8)],
    ids=lambda w: f"{w.dtype} {tuple(w.shape)}",
)  # fmt: skip
def test_rows_that_are_none_are_refused_by_name(wrong):
    with pytest.raises(RefitError, match=NAME):
        packing.unpacked([(NAME + packing.MARK, wrong)])
