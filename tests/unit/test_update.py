"""How much of an update the codes took, against sums in float64 over whole matrices; and which rows are looked at."""

import math

import numpy as np
import pytest
import torch

from ascend_quant.refit import watched_rows
from ascend_quant.refit.plan import Entry
from ascend_quant.refit.resident import QuantizedWeight, ResidentWeight
from ascend_quant.refit.update import kind_of
from ascend_quant.refit.watched_rows import WatchedRows, watched_rows_of
from ascend_quant.schemes import SCHEMES

INT8 = SCHEMES["int8"]
KINDS = ("self_attn.q_proj", "mlp.down_proj")


def weights(seed: int, layers: int = 2, rows: int = 4, columns: int = 64) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    names = [f"model.layers.{layer}.{kind}.weight" for layer in range(layers) for kind in KINDS]
    named = {name: torch.randn(rows, columns, generator=generator).bfloat16() for name in names}
    return named | {"model.norm.weight": torch.ones(columns), "model.layers.0.mlp.gate.weight": torch.randn(4, columns)}


def moved(old: dict[str, torch.Tensor], size: float, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: (w + size * torch.randn(w.shape, generator=generator)).to(w.dtype) for name, w in old.items()}


def entries(named: dict[str, torch.Tensor]) -> dict[str, Entry]:
    """Routers and vectors keep their dtype."""
    found = {}
    for name, w in named.items():
        codes, scale = torch.zeros(w.shape, dtype=torch.int8), torch.zeros(len(w), 1)
        plain = ResidentWeight(name, torch.zeros(w.shape))
        resident = QuantizedWeight(name, codes, scale, w.shape[-1]) if "proj" in name else plain
        found[name] = Entry(w.shape, [(resident, None)])
    return found


def run(*steps: dict[str, torch.Tensor], scheme=INT8):
    """The last step's update."""
    sample = WatchedRows(scheme)
    for step in steps:
        sample.begin()
        for pair in step.items():
            sample.take([pair])
        update = sample.end(entries(step))
    return update


def int8(w: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """In numpy's float32, as the scheme is defined: codes, halves rounded to the even one, and the rows' scales."""
    numbers = w.float().numpy()
    scales = np.abs(numbers).max(-1, keepdims=True) / np.float32(127)
    return np.rint(numbers / scales).astype(np.float64), scales.astype(np.float64)


def by_hand(old: dict[str, torch.Tensor], new: dict[str, torch.Tensor], kind: str = "proj") -> dict[str, float]:
    """The figures of all matrices of a kind, whole."""
    parts = []
    for name in (name for name in old if kind in name):
        (codes, scales), (former, former_scales) = int8(new[name]), int8(old[name])
        dw = new[name].double().numpy() - old[name].double().numpy()
        dq = codes * scales - former * former_scales
        parts.append((dq.ravel(), dw.ravel(), (codes != former).ravel(), np.minimum(1, abs(dw) / scales).ravel()))
    dq, dw, changed, expected = (np.concatenate(part) for part in zip(*parts, strict=True))
    cosine = dq @ dw / math.sqrt((dq @ dq) * (dw @ dw))
    return {"share": dq @ dw / (dw @ dw), "cosine": cosine, "changed": changed.mean(), "expected": expected.mean()}


def test_int8_figures_are_those_of_whole_matrices():
    first = weights(0)
    second = moved(first, 0.003, 1)
    third = moved(second, 0.02, 2)
    found = run(first, second, third).figures
    for name, value in by_hand(second, third).items():
        assert found[f"update/{name}"] == pytest.approx(value, rel=1e-5), name
    for name, value in by_hand(first, third).items():
        assert found[f"since_start/{name}"] == pytest.approx(value, rel=1e-5), name
    for kind in KINDS:
        here = by_hand(second, third, kind)
        assert found[f"update/{kind_of(kind)}/cosine"] == pytest.approx(here["cosine"], rel=1e-5)
        assert found[f"update/{kind_of(kind)}/share"] == pytest.approx(here["share"], rel=1e-5)
    assert not any("gate" in name or "norm" in name for name in found)


def test_a_small_step_goes_far_enough_on_average_and_mostly_elsewhere():
    """The larger the step beside a code, the straighter the codes follow."""
    first = weights(0, rows=64, columns=512)
    small, large = (run(first, moved(first, size, 1)).figures for size in (2e-3, 0.2))
    assert small["update/share"] == pytest.approx(1, abs=0.25) and large["update/share"] == pytest.approx(1, abs=0.01)
    assert small["update/cosine"] < 0.5 < 0.99 < large["update/cosine"]
    assert small["update/changed"] == pytest.approx(small["update/expected"], rel=0.2)


def test_nothing_is_said_of_weights_that_did_not_move():
    first = weights(0)
    assert run(first) is None
    assert run(first, first).figures == {}


@pytest.mark.parametrize("scheme", [one for one in SCHEMES.values() if one.quantized], ids=lambda one: one.name)
def test_other_schemes_are_known_where_rows_tell(scheme):
    if watched_rows_of(scheme) is None:
        assert scheme.shares in ("tensor", "block")
        return
    first = weights(0, columns=128)
    found = run(first, moved(first, 0.3, 1), scheme=scheme).figures
    assert found["update/share"] == pytest.approx(1, abs=0.1) and found["update/cosine"] > 0.8
    assert ("update/changed" in found) == (scheme.codes != "fp8")


def test_the_sample_is_by_name_and_small(monkeypatch):
    """Whatever the order and the buckets; a few tensors of each kind, a few rows of each, one matrix of a stack."""
    named = {f"model.layers.{i}.self_attn.q_proj.weight": torch.randn(100, 8) for i in range(40)}
    named |= {f"model.layers.{i}.mlp.experts.gate_up_proj": torch.randn(16, 100, 8) for i in range(40)}
    kept = []
    for pairs in (list(named.items()), list(named.items())[::-1]):
        sample = WatchedRows(INT8)
        sample.take(pairs[:50])
        sample.take(pairs[50:])
        kept.append(dict(sample._coming))
    assert kept[0].keys() == kept[1].keys() and all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])
    kinds = [kind_of(name) for name in kept[0]]
    assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(
        ("q_proj", "experts.gate_up_proj"), watched_rows.NAMES
    )
    assert {tuple(rows.shape) for rows in kept[0].values()} == {(watched_rows.ROWS, 8)}


def test_tensors_of_the_same_kind_that_no_rank_quantizes_are_not_looked_at():
    """A vision tower's, and those of MTP layers that the engine leaves out."""
    first = weights(0)
    others = {f"{where}.mlp.down_proj.weight": torch.randn(4, 64) for where in ("visual.blocks.0", "mtp.layers.0")}
    sample = WatchedRows(INT8)
    for step in (first, moved(first, 0.02, 1)):
        sample.begin()
        sample.take((step | others).items())
        plain = ResidentWeight("visual", torch.zeros(4, 64))
        rest = [Entry(torch.Size((4, 64)), [(plain, None)]), Entry(torch.Size((4, 64)), skipped=True)]
        update = sample.end(entries(step) | dict(zip(others, rest, strict=True)))
        others = moved(others, 5.0, 2)
    assert update.figures == run(first, moved(first, 0.02, 1)).figures


def test_other_names_begin_anew():
    """An engine that has loaded a checkpoint, and then gets each layer's experts in one tensor."""
    first, second = weights(0), moved(weights(0), 0.02, 1)
    apart = {f"{name}.0": tensor for name, tensor in first.items()}
    sample, updates = WatchedRows(INT8), []
    for step in (apart, first, first, second):
        sample.begin()
        sample.take(step.items())
        updates.append(sample.end(entries(step)))
    assert updates[:3] == [None] * 3
    assert updates[3].figures["update/cosine"] == pytest.approx(by_hand(first, second)["cosine"], rel=1e-5)
    sample.begin()
    sample.take([(f"{name}:int8", tensor.to(torch.int8)) for name, tensor in first.items()])
    assert sample.end(entries(first)) is None  # codes tell nothing, and change nothing
    sample.begin()
    sample.take(second.items())
    assert sample.end(entries(second)) is None  # after codes
    sample.begin()
    sample.take(second.items())
    assert sample.end(entries(second)) is not None


def test_a_refit_that_failed_leaves_no_trace():
    first, lost, second = weights(0), weights(7), moved(weights(0), 0.02, 1)
    sample = WatchedRows(INT8)
    for step, closes in ((lost, False), (first, True), (lost, False), (second, True)):
        sample.begin()
        sample.take(step.items())
        update = sample.end(entries(step)) if closes else None
    assert update.figures["update/cosine"] == pytest.approx(by_hand(first, second)["cosine"], rel=1e-5)
