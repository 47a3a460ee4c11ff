"""Roundings that keep what is less than a code: the definition's bytes wherever rows are cut, w on average, no loss."""

import math
import random
import struct
from hashlib import blake2b
from itertools import accumulate, pairwise

import pytest
import torch

from ascend_quant import oracle
from ascend_quant.kernels import rounding as kernels
from ascend_quant.kernels.moves import scales_in
from ascend_quant.kernels.registry import NoKernels
from ascend_quant.refit import Refit, RefitError, coding
from ascend_quant.refit.resident import QuantizedWeight
from ascend_quant.refit.rounding import Nearest, rounding_of, tell_of_lost_updates
from ascend_quant.schemes import SCHEMES

INT8 = SCHEMES["int8"]
NAME = "model.layers.0.mlp.down_proj.weight"
SEED, STEP = 5, 9
SHAPES = ((5, 32), (300, 33), (2, 7, 48), (1, 7), (0, 16))
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]  # plain operators: no interpreter stands for a GPU's


def weight(shape, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1])).to(dtype)


def hashed(step: int = STEP, seed: int = SEED) -> Nearest:
    found = rounding_of("hashed", seed)
    found.begin(step)
    return found


def sent_of(made: Nearest, *parts: coding.Part) -> list[torch.Tensor]:
    """What travels of some rows."""
    sent = [part.rows.new_full(coding.sent_shape(part.rows.shape), 77, dtype=torch.int8) for part in parts]
    made.encode(parts, sent, INT8)
    return sent


def read(sent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales."""
    rows = sent.reshape(-1, sent.shape[-1]).cpu()
    assert not rows[:, -12:].any()
    return sent[..., :-16].cpu(), scales_in(rows[:, -16:-12]).view(sent.shape[:-1])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_hashed_codes_and_scales_are_the_oracles(dtype, device):
    parts = [coding.Part(f"{i}.weight", weight(shape, dtype), 32 * i) for i, shape in enumerate(SHAPES)]
    sent = sent_of(hashed(), *(part._replace(rows=part.rows.to(device)) for part in parts))
    for part, one in zip(parts, sent, strict=True):
        if part.rows.numel():
            codes, scale = oracle.hashed(part.rows, SEED, STEP, part.name, part.first)
            assert torch.equal(read(one)[0], codes) and torch.equal(read(one)[1], scale)


def float32(number: float) -> float:
    return struct.unpack("f", struct.pack("f", number))[0]


def by_hand(row: list[float], first: int) -> tuple[list[int], float]:
    """A row's codes and scale in Python's own numbers."""
    absmax = max(map(abs, row))
    low = struct.unpack("I", struct.pack("f", absmax))[0]
    [magnitude] = struct.unpack("f", struct.pack("I", -(-low // 65536) * 65536))
    scale = float32(magnitude / 127)
    digest = blake2b(f"{SEED}/{STEP}/{NAME}".encode(), digest_size=8).digest()
    codes = []
    for i, w in enumerate(row, first):
        x = i % 2**32
        for word in struct.unpack("<II", digest):
            x ^= word
            for _ in range(2):
                x = (x ^ x >> 16) * 0x45D9F3B % 2**32
            x ^= x >> 16
        t = float32(abs(w) * float32(1 / scale))
        code = min(math.floor(t) + (x % 2**24 < (t - math.floor(t)) * 2**24), 127)
        codes.append(int(math.copysign(code, w)))
    return codes, scale


@pytest.mark.parametrize("first", [0, 2**32 - 16, 3 * 2**32 + 5])
def test_the_oracle_is_the_rule_by_hand(first):
    w_NK = weight((40, 33))
    w_NK[:, 0] = 2.0 ** torch.arange(-20, 20)
    codes_NK, scale_N = oracle.hashed(w_NK, SEED, STEP, NAME, first)
    for n, row in enumerate(w_NK.tolist()):
        assert by_hand(row, first + 33 * n) == (codes_NK[n].tolist(), float(scale_N[n]))
    assert torch.equal(read(sent_of(hashed(), coding.Part(NAME, w_NK, first))[0])[0], codes_NK)


@pytest.mark.parametrize("of", ["seeds", "steps"])
def test_the_mean_is_the_weight(of):
    """Within 4 standard errors, element by element, and all together."""
    count, w_NK = 2000, weight((8, 64))
    w_NK[0] /= 1e20
    w_NK[:, 0] = w_NK.abs().amax(1) * -1.004  # BF16 has no such numbers
    total_NK = torch.zeros(8, 64, dtype=torch.float64)
    for i in range(count):
        made = hashed(seed=i) if of == "seeds" else hashed(step=i)
        codes_NK, scale_N = read(sent_of(made, coding.Part(NAME, w_NK))[0])
        total_NK += codes_NK
    wanted_NK = w_NK.double() / scale_N.double().unsqueeze(1)
    rest_NK = wanted_NK.abs().frac()
    variance_NK = rest_NK * (1 - rest_NK) / count
    off_NK = total_NK / count - wanted_NK
    assert (off_NK.abs() <= 4 * (variance_NK + count**-2).sqrt()).all()
    assert abs(off_NK.sum()) <= 4 * variance_NK.sum().sqrt()
    nearest_NK, scale_N = oracle.quantize(w_NK, INT8)
    assert abs((nearest_NK * scale_N.unsqueeze(1) - w_NK)[1:]).max() > 0.4 * scale_N.max()


def test_draws_of_elements_and_steps_know_nothing_of_each_other():
    """Halves of a code: each draw is a coin, and so is whether two agree."""
    w_NK = torch.full((64, 257), 0.5)
    w_NK[:, 0] = 127
    codes = [read(sent_of(hashed(step), coding.Part(NAME, w_NK))[0])[0] for step in range(16)]
    ups = torch.stack(codes)[:, :, 1:].bool()
    pairs = [ups[:, :, d:] ^ ups[:, :, : ups.shape[2] - d] for d in (1, 2, 16, 64, 128)]
    pairs += [ups[:, d:] ^ ups[:, : 64 - d] for d in (1, 2, 32)] + [ups[d:] ^ ups[: 16 - d] for d in (1, 2, 8)]
    for coins in (ups, *pairs):
        assert abs(coins.double().mean() - 0.5) <= 4 * 0.5 / coins.numel() ** 0.5


def cut(w: torch.Tensor, rows: list[int]) -> list[coding.Part]:
    """Shards of so many rows."""
    starts = [0, *accumulate(rows)]
    size = w[0].numel()
    return [coding.Part(NAME, w[a:b], a * size) for a, b in pairwise(starts)]


def key_of(part: coding.Part) -> tuple[str, int, int]:
    return part.name, part.first, len(part.rows)


@pytest.mark.parametrize("shape", [(29, 40), (6, 5, 16)])
def test_the_same_bytes_however_rows_are_cut_and_in_whatever_order(shape, monkeypatch):
    w, other = weight(shape), coding.Part("other.weight", weight((7, 24)))
    [whole] = sent_of(hashed(), coding.Part(NAME, w))
    for elements in (1, 100, 1 << 20):
        monkeypatch.setattr(kernels, "HOST_ELEMENTS", elements)
        for ranks in (1, 2, 4):
            rows = -(-len(w) // ranks)
            parts = cut(w, [max(0, min(rows, len(w) - rank * rows)) for rank in range(ranks)])
            shuffled = random.Random(ranks).sample([*parts, other], len(parts) + 1)
            together = {key_of(part): sent for part, sent in zip(shuffled, sent_of(hashed(), *shuffled), strict=True)}
            for found in ([sent_of(hashed(), part)[0] for part in parts], [together[key_of(part)] for part in parts]):
                assert torch.equal(torch.cat(found), whole)
    for different in (hashed(step=STEP + 1), hashed(seed=SEED + 1)):
        assert not torch.equal(sent_of(different, coding.Part(NAME, w))[0], whole)
    assert not torch.equal(sent_of(hashed(), coding.Part("other.weight", w))[0], whole)


@pytest.mark.parametrize("name", ["hashed", "carried"])
def test_an_engine_holds_what_was_sent_and_says_so(name):
    """Two ranks' halves of K beside the whole: bytes, and digests."""
    w_NK = weight((70, 48))
    made = rounding_of(name, SEED)
    made.begin(STEP)
    [sent] = sent_of(made, coding.Part("up", w_NK))
    codes_NK, scale_N = read(sent)
    cuts = (slice(0, 24), slice(24, 48), slice(0, 48))
    held = [
        QuantizedWeight(str(i), torch.zeros(70, len(range(48)[one]), dtype=torch.int8), torch.zeros(70), 48)
        for i, one in enumerate(cuts)
    ]
    refit = Refit(held)
    with refit.session():
        w = coding.codes_of("up:int8", sent)
        slot = refit.batch.new_sources([("up:int8", w.numel())])
        for one, columns in zip(held, cuts, strict=True):
            refit.write(slot, one, one.data, w[:, columns], w, w, coded=True)
    for one, columns in zip(held, cuts, strict=True):
        assert torch.equal(one.data, codes_NK[:, columns]) and torch.equal(one.scale.view(-1), scale_N)
    digests = [oracle.digest(one) for columns in cuts for one in (codes_NK[:, columns].contiguous(), scale_N)]
    weights = [weight for one in held for weight in (one.weight, 3 * one.weight)]
    assert refit.last_receipt.digest == f"{oracle.add_digests(*digests, weights=weights):016x}" == refit.digest()


def test_a_device_that_rounds_otherwise_is_refused(monkeypatch):
    cpu = torch.device("cpu")
    kernels.check.__wrapped__(cpu)
    for name, wrong in (("FACTOR", 0x45D9F3D), ("LARGEST_BITS", 0), ("DRAWS", 2**23)):
        with monkeypatch.context() as patch:
            patch.setattr(kernels, name, wrong)
            with pytest.raises(NoKernels, match="cpu"):
                kernels.check.__wrapped__(cpu)


@pytest.mark.parametrize("name", ["hashed", "carried"])
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
def test_rows_that_are_not_finite_have_such_scales(name, bad):
    w_NK = weight((6, 32))
    w_NK[4, 3] = bad
    _, scale_N = read(sent_of(rounding_of(name), coding.Part(NAME, w_NK))[0])
    assert torch.isfinite(scale_N).tolist() == [True] * 4 + [False, True]


def steps_of(w_NK: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Weights that move by a thousandth of a code a step."""
    speed_NK = torch.randn(w_NK.shape, generator=torch.Generator().manual_seed(1)) * w_NK.abs().amax() / 127e3
    return [w_NK + i * speed_NK for i in range(count)]


@pytest.mark.parametrize("device", DEVICES)
def test_carried_codes_follow_the_weights_and_lose_nothing(device):
    """As the oracle, step by step; what was served in all is the weights in all, but for half a code."""
    made, left_NK, off_NK = rounding_of("carried"), torch.zeros(9, 40), torch.zeros(9, 40, dtype=torch.float64)
    steps = steps_of(weight((9, 40)), 60)
    for step, w_NK in enumerate(steps):
        made.begin(step)
        codes_NK, scale_N = read(sent_of(made, coding.Part(NAME, w_NK.to(device)))[0])
        target_NK = w_NK + left_NK
        wanted_NK, scale, left_NK = oracle.carried(w_NK, left_NK)
        assert torch.equal(codes_NK, wanted_NK) and torch.equal(scale_N, scale)
        served_NK = codes_NK.float() * scale_N.unsqueeze(1)
        assert torch.equal(served_NK.double() + left_NK.double(), target_NK.double())
        off_NK += served_NK.double() - w_NK.double()
    bound_N1 = scale_N.unsqueeze(1).double() / 2 + len(steps) * 2**-24 * steps[-1].abs().amax(1, keepdim=True)
    assert (off_NK.abs() <= bound_N1 * (1 + 2**-16)).all()
    assert made.bytes == 9 * 40 * 4 + 9 * 56
    nearest_NK = sum(oracle.dequantize(*oracle.quantize(w_NK, INT8), INT8).double() - w_NK for w_NK in steps)
    assert (nearest_NK.abs() > 10 * bound_N1).float().mean() > 0.5


@pytest.mark.parametrize(("name", "changed"), [("hashed", 1 / 3), ("carried", 1 / 2)])
def test_what_the_page_says_of_weights_that_stand_still(name, changed):
    """Codes that change, and the squared error of a step, in codes: 1/12 of nearest ones."""
    w_NK, made, codes, errors = weight((64, 1024)), rounding_of(name), [], []
    for step in range(20):
        made.begin(step)
        codes_NK, scale_N = read(sent_of(made, coding.Part(NAME, w_NK))[0])
        codes.append(codes_NK)
        errors.append((codes_NK - w_NK / scale_N.unsqueeze(1)).square().mean())
    moved = torch.stack([(here != there).float().mean() for here, there in pairwise(codes)])
    assert float(moved.mean()) == pytest.approx(changed, rel=0.05)
    assert float(torch.stack(errors[1:]).mean()) == pytest.approx(2 / 12, rel=0.05)


def test_a_step_that_is_synced_again_is_sent_the_same_and_others_go_on():
    made, (first, second, third) = rounding_of("carried"), steps_of(weight((8, 32)), 3)
    made.begin(1)
    shards = [coding.Part(NAME, first[:5]), coding.Part(NAME, first[5:], 5 * 32)]
    once = sent_of(made, *shards)
    made.begin(1)
    again = [sent_of(made, part)[0] for part in reversed(shards)][::-1]
    made.begin(None)  # verl's validation syncs without a step
    assert all(map(torch.equal, once, again)) and all(map(torch.equal, once, sent_of(made, *shards)))
    _, _, left_NK = oracle.carried(first, torch.zeros(8, 32))
    for step, w_NK in ((2, second), (2, third)):  # other weights, though the step has not moved
        made.begin(step)
        codes_NK, _, left_NK = oracle.carried(w_NK, left_NK)
        sent = sent_of(made, coding.Part(NAME, w_NK[:5]), coding.Part(NAME, w_NK[5:], 5 * 32))
        assert torch.equal(torch.cat([read(one)[0] for one in sent]), codes_NK)


def test_weights_that_lost_the_update_already_are_told_once(caplog):
    tell_of_lost_updates.cache_clear()
    for dtype in (torch.float32, torch.bfloat16, torch.bfloat16):
        sent_of(hashed(), coding.Part(NAME, weight((8, 32), dtype)))
    [said] = [record.getMessage() for record in caplog.records]
    assert NAME in said and "bfloat16" in said


def test_shards_that_are_cut_anew_are_refused():
    made = rounding_of("carried")
    sent_of(made, coding.Part(NAME, weight((8, 32))))
    made.begin(1)
    with pytest.raises(RefitError, match=NAME):
        sent_of(made, coding.Part(NAME, weight((4, 32))))
