"""What the codes take of an update that leaves as codes: the figures that an engine has of the same weights in BF16."""

import pytest

pytest.importorskip("verl", reason="the verl adapter needs verl")

import torch

from ascend_quant import oracle
from ascend_quant.integrations.verl.sent_update import SentUpdate
from ascend_quant.refit.coding import coded, parted
from ascend_quant.refit.rounding import rounding_of
from ascend_quant.refit.watched_rows import NAMES, ROWS, chosen
from ascend_quant.schemes import SCHEMES

INT8 = SCHEMES["int8"]
CODED = [f"model.layers.{i}.mlp.{kind}_proj.weight" for i in range(NAMES + 3) for kind in ("up", "down")]
STACK = "model.layers.0.mlp.experts.gate_up_proj"


def state(step: int) -> dict[str, torch.Tensor]:
    """float32; each step moves by some thousandth."""
    found = {}
    for i, name in enumerate([*CODED, STACK, "model.norm.weight"]):
        shape = {STACK: (3, 8, 32), "model.norm.weight": (32,)}.get(name, (ROWS, 32))  # all rows are watched
        generator = torch.Generator().manual_seed(i)
        found[name] = torch.randn(shape, generator=generator)
        for _ in range(step):
            found[name] = found[name] + 0.005 * torch.randn(shape, generator=generator)
    return found


def by_hand(names, before: dict[str, torch.Tensor], now: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Share and cosine in float64, with int8's rule written out."""
    dw, dq = [], []
    for name in names:
        w, q = [], []
        for one in (before[name], now[name]):
            rounded = one.to(torch.bfloat16).float()
            scale = rounded.abs().amax(-1, keepdim=True) / 127
            w.append(rounded.double())
            q.append(((rounded / scale).round() * scale).double())
        dw.append((w[1] - w[0]).flatten())
        dq.append((q[1] - q[0]).flatten())
    w, q = torch.cat(dw), torch.cat(dq)
    return float(q @ w / (w @ w)), float(q @ w / (q.norm() * w.norm()))


def sync(update: SentUpdate, now: dict[str, torch.Tensor], whole: bool, sent=()) -> None:
    """One weight sync of these."""
    weights = [*now.items()]
    if whole:
        assert [*update.passing(now.items(), CODED)] == weights
    else:
        update.look(now, CODED)
    assert [*update.leaving([weights, sent])] == [weights, sent]


@pytest.mark.parametrize("whole", [True, False], ids=["on their way", "of shards"])
def test_the_figures_are_those_of_the_weights(whole):
    update = SentUpdate(INT8)
    assert len(chosen(CODED)) == 2 * NAMES
    for step in range(3):
        sync(update, state(step), whole)
        if step == 0:
            assert update.as_metrics() == {}
    found = update.as_metrics()
    for group, before in (("update", 1), ("since_start", 0)):
        share, cosine = by_hand(chosen(CODED), state(before), state(2))
        assert found[f"refit/{group}/share"] == pytest.approx(share, rel=1e-4)
        assert found[f"refit/{group}/cosine"] == pytest.approx(cosine, rel=1e-4)
    assert found["refit/update/up_proj/cosine"] > 0


@pytest.mark.parametrize("whole", [True, False], ids=["on their way", "of shards"])
def test_codes_of_another_rounding_are_those_that_left(whole):
    """Beside the float32 weights; this rank's rows are the first ones of what leaves, under either name."""
    update, rounding, served = SentUpdate(INT8, of_float32=True), rounding_of("hashed", 1), []
    for step in range(3):
        now = state(step)
        rounding.begin(step)
        all_rows = {name: torch.cat([now[name], 2 + now[name]]) for name in CODED}
        sent = coded([*all_rows.items()], INT8, rounding.encode)
        sync(update, now, whole, sent if whole else [(parted(name)[0], one) for name, one in sent])
        names, codes = sorted(chosen(CODED)), {name: oracle.hashed(all_rows[name], 1, step, name) for name in CODED}
        w = torch.cat([now[name].flatten() for name in names]).double()
        q = [(codes[name][0] * codes[name][1].unsqueeze(1))[:ROWS].flatten() for name in names]
        served.append((w, torch.cat(q).double(), torch.cat([codes[name][0][:ROWS].flatten() for name in names])))
    found = update.as_metrics()
    for group, before in (("update", 1), ("since_start", 0)):
        (w, q, codes), (w_now, q_now, codes_now) = served[before], served[2]
        dw, dq = w_now - w, q_now - q
        assert found[f"refit/{group}/share"] == pytest.approx(float(dq @ dw / (dw @ dw)), rel=1e-4)
        assert found[f"refit/{group}/cosine"] == pytest.approx(float(dq @ dw / (dq.norm() * dw.norm())), rel=1e-4)
        assert found[f"refit/{group}/changed"] == pytest.approx(float((codes != codes_now).double().mean()))


def test_stacks_are_watched_and_a_rank_without_rows_says_nothing():
    update = SentUpdate(INT8)
    for step in range(2):
        update.look(state(step), [STACK])
        [*update.leaving([])]
    assert update.as_metrics()["refit/update/experts.gate_up_proj/share"] > 0
    empty = SentUpdate(INT8)
    for _ in range(2):
        empty.look({name: tensor[:0] for name, tensor in state(0).items()}, CODED)
        [*empty.leaving([])]
    assert empty.as_metrics() == {}
