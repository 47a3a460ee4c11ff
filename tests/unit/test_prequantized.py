"""Weights that travel as codes: the bytes are those that the engine would make itself, wherever rows are cut."""

import math

import pytest
import torch

from ascend_quant import oracle
from ascend_quant.refit import Refit, RefitError
from ascend_quant.refit.resident import QuantizedWeight, ResidentWeight
from ascend_quant.refit.scales import TensorScaledWeight
from ascend_quant.schemes import SCHEMES
from ascend_quant.transfer import prequantized

INT8, FP8 = SCHEMES["int8"], SCHEMES["fp8"]
NAME = "model.layers.0.mlp.down_proj.weight"
SHAPES = ((5, 32), (300, 33), (2, 7, 48), (1, 7), (0, 16))


def weight(shape, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1])).to(dtype)


def scales_behind(sent: torch.Tensor) -> torch.Tensor:
    """Float by float, from the bytes."""
    rows = sent.view(torch.int8).cpu().reshape(-1, sent.shape[-1])
    return torch.tensor(
        [torch.frombuffer(bytearray(row[-16:-12].numpy().tobytes()), dtype=torch.float32) for row in rows]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scheme", [INT8, FP8], ids=lambda scheme: scheme.name)
def test_rows_and_scales_are_the_oracles(kernels, monkeypatch, scheme, dtype):
    monkeypatch.setattr(prequantized, "kernels_for", lambda device: kernels.module)
    weights = {f"{i}.weight": weight(shape, dtype) for i, shape in enumerate(SHAPES)}
    sent = dict(prequantized.coded([(name, w.to(kernels.device)) for name, w in weights.items()], scheme))
    assert [prequantized.parted(name) for name in sent] == [(name, True) for name in weights]
    for (name, travelling), w in zip(sent.items(), weights.values(), strict=True):
        codes, scale = oracle.quantize(w.to(torch.bfloat16), scheme)
        found = prequantized.codes_of(name, travelling).cpu()
        assert found.dtype == codes.dtype and torch.equal(found.view(torch.int8), codes.view(torch.int8))
        assert torch.equal(scales_behind(travelling), scale.view(-1).cpu())
        assert not travelling.view(torch.int8)[..., -12:].any()


def test_names_tell_what_travels():
    assert prequantized.parted(prequantized.sent_name(NAME, FP8)) == (NAME, True)
    for plain in (NAME, "a:b.weight", "x:bf16", ":int8", ""):
        assert prequantized.parted(plain) == (plain, False)


class Engine:
    """Two ranks' row-parallel halves (K cut), a whole matrix, and a norm; written without an engine's loaders."""

    def __init__(self, whole=QuantizedWeight, dtype=torch.int8):
        def quantized(name, rows, columns, kind=QuantizedWeight):
            return kind(name, torch.zeros(rows, columns, dtype=dtype), torch.zeros(rows), 48)

        self.halves = [quantized(f"half{i}", 6, 24) for i in range(2)]
        self.whole = quantized("whole", 70, 48, whole)
        self.norm = ResidentWeight("norm", torch.zeros(48, dtype=torch.bfloat16))
        self.refit = Refit([*self.halves, self.whole, self.norm])

    def take(self, down: torch.Tensor, up: torch.Tensor, coded: str = "") -> None:
        """(6, 48) and (70, 48) floats, or their codes."""
        with self.refit.session():
            for name, sent in (("down", down), ("up", up)):
                w = prequantized.codes_of(f"{name}:{coded}", sent) if coded else sent
                slot = self.refit.batch.new_sources([(f"{name}:{coded}" if coded else name, w.numel())])
                if name == "up":
                    self.refit.write(slot, self.whole, self.whole.data, w, w, w, prequantized=bool(coded))
                    continue
                for half, columns in zip(self.halves, (slice(0, 24), slice(24, 48)), strict=True):
                    self.refit.write(slot, half, half.data, w[:, columns], w, w, prequantized=bool(coded))
            self.refit.write(self.refit.batch.new_sources([("norm", 48)]), self.norm, self.norm.data, torch.ones(48))

    def bytes(self) -> list[torch.Tensor]:
        held = (*self.halves, self.whole)
        return [t.view(torch.int8) for one in held for t in (one.data, one.scale)]


@pytest.mark.parametrize("scheme", [INT8, FP8], ids=lambda scheme: scheme.name)
def test_codes_end_as_the_floats_that_they_are_of(scheme):
    down, up = weight((6, 48)), weight((70, 48), torch.bfloat16)
    floats, codes = (Engine(dtype=prequantized.codes_dtype(scheme)) for _ in range(2))
    floats.take(down, up)
    (_, sent_down), (_, sent_up) = prequantized.coded([("down", down), ("up", up)], scheme)
    codes.take(sent_down, sent_up, scheme.name)
    assert all(torch.equal(a, b) for a, b in zip(floats.bytes(), codes.bytes(), strict=True))
    here, there = floats.refit.last_receipt, codes.refit.last_receipt
    assert (here.digest, here.changed) == (there.digest, there.changed)
    assert there.digest == codes.refit.digest()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rows_that_were_not_finite_are_counted_and_named(bad):
    down, up = weight((6, 48)), weight((70, 48))
    up[[3, 69], [0, 47]] = bad
    sent = [tensor for _, tensor in prequantized.coded([("down", down), ("up", up)], INT8)]
    with pytest.raises(RefitError, match=r"up:int8.* 2 "):
        Engine().take(*sent, "int8")


@pytest.mark.parametrize(
    ("scheme", "code", "scale"),
    [
        (INT8, 5, -1.0),
        (INT8, 5, 3e38),
        (INT8, 5, 2.7e36),
        (FP8, 5, -1.0),
        (FP8, 5, 7.7e35),
        (FP8, 0x7F, 1.0),
        (FP8, -1, 1.0),
    ],
)
def test_codes_that_no_quantization_gives_are_counted_and_named(scheme, code, scale):
    """A scale that is negative, or with which codes are more than BF16 holds; e4m3's two NaN."""
    down, up = weight((6, 48)), weight((70, 48))
    sent = [tensor for _, tensor in prequantized.coded([("down", down), ("up", up)], scheme)]
    for row in (3, 69):
        sent[1].view(torch.int8)[row, 7] = code
        sent[1][row, 48:52].view(torch.int8)[:] = torch.tensor([scale]).view(torch.int8)
    with pytest.raises(RefitError, match=rf"up:{scheme.name}.* 2 "):
        Engine(dtype=prequantized.codes_dtype(scheme)).take(*sent, scheme.name)


@pytest.mark.parametrize("scheme", [INT8, FP8], ids=lambda scheme: scheme.name)
def test_the_largest_finite_row_is_taken(scheme):
    top = torch.finfo(torch.bfloat16).max
    down, up = weight((6, 48)), weight((70, 48))
    up[3, 7], up[4, 8] = top, -top
    engine = Engine(dtype=prequantized.codes_dtype(scheme))
    engine.take(*(tensor for _, tensor in prequantized.coded([("down", down), ("up", up)], scheme)), scheme.name)
    assert engine.refit.last_receipt.nonfinite == 0


def test_what_holds_no_such_codes_refuses_them():
    down, up = weight((6, 48)), weight((70, 48))
    sent = [tensor for _, tensor in prequantized.coded([("down", down), ("up", up)], FP8)]
    for engine in (Engine(), Engine(TensorScaledWeight, torch.float8_e4m3fn)):
        with pytest.raises(RefitError, match="float8_e4m3fn"):
            engine.take(*sent, "fp8")
    norm = ResidentWeight("norm", torch.zeros(4, 8))
    with pytest.raises(RefitError, match="norm"):
        norm.check_dtype(torch.int8, prequantized=True)


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros(4, 48),
        torch.zeros(48, dtype=torch.int8),
        torch.zeros(4, 16, dtype=torch.int8),
        torch.zeros(48, 48, dtype=torch.int8).t()[:, :40],
    ],
    ids=["floats", "a vector", "scales alone", "not contiguous"],
)
def test_what_is_no_row_of_codes_is_named(wrong):
    with pytest.raises(RefitError, match=NAME):
        prequantized.codes_of(f"{NAME}:int8", wrong)


def test_rows_of_another_length_are_refused():
    [(_, sent)] = prequantized.coded([("up", weight((70, 64)))], INT8)
    down = prequantized.coded([("down", weight((6, 48)))], INT8)[0][1]
    with pytest.raises(RefitError, match="whole"):
        Engine().take(down, sent, "int8")
