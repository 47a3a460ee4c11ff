"""A step's figures under verl: reports of many workers, each replica's mismatch, the log on importance weights."""

import logging
import math

import pytest
import torch
from naming import has_line_naming, line_naming

from ascend_quant.integrations.verl.metrics import renamed
from ascend_quant.integrations.verl.metrics.receipts import merge
from ascend_quant.integrations.verl.metrics.replica_mismatch import REPLICA, ranks_of, replica_mismatch
from ascend_quant.integrations.verl.training.effective_sample import CUT, EVERY, LEAST, NAME, EffectiveSample, metric
from ascend_quant.refit import RefitError


def report(digest, milliseconds=1.0, scales=None, **more):
    """A worker's metrics and digests."""
    values = dict(number=4, milliseconds=milliseconds, changed=0.5, verified=10, clamped=3)
    values |= {"kernel_ms": milliseconds / 4, "wait_ms": milliseconds / 2, "wake_ms": milliseconds / 8}
    digests = {"weights": digest} | ({} if scales is None else {"kv_scales": scales})
    return {f"refit/{name}": value for name, value in {**values, **more}.items()}, digests


def test_reports_of_ranks_and_replicas_become_one():
    first = [report("7", milliseconds=3.0, changed=0.2), report("8", clamped=4, number=99, verified=9)]
    second = [report("7", milliseconds=9.0, changed=0.2), report("8")]
    metrics = merge({0: first, 3: second}, {0: "int8", 3: "int8"})
    together, _ = report("7", 9.0, changed=pytest.approx(0.35), verified=9, clamped=7)  # of a model's two ranks
    for rank, milliseconds in ((0, 3.0), (3, 9.0)):
        together |= {
            f"refit/replica{rank}/milliseconds": milliseconds,
            f"refit/replica{rank}/wake_ms": milliseconds / 8,
        }
    assert metrics == together
    assert merge({0: [report("7")]}, {0: "int8"}) == report("7")[0]  # one replica has no figures of its own


def test_one_unknown_share_makes_the_merged_one_unknown():
    known, unknown = [report("7", changed=0.25, kernel_ms=3.0)], [report("7", wait_ms=8.0), report("7")]
    del unknown[1][0]["refit/changed"]
    metrics = merge({0: known, 1: unknown}, {0: "int8", 1: "bf16"})
    assert "refit/changed" not in metrics
    assert (metrics["refit/kernel_ms"], metrics["refit/wait_ms"]) == (3.0, 8.0)


def test_replicas_that_serve_alike_and_differ_are_an_error_and_those_of_two_schemes_are_not():
    replicas = {0: [report("7"), report("8")], 1: [report("1"), report("2")], 2: [report("7"), report("9")]}
    with pytest.raises(RefitError, match=line_naming("[0, 2]", "['8', '9']", "worker 1")):
        merge(replicas, {0: "int8", 1: "bf16", 2: "int8"})
    with pytest.raises(RefitError, match=r"\(4, 0\)"):  # a worker without a report
        merge({2: [report("7")], 4: [None]}, {2: "int8", 4: None})
    metrics = merge({0: [report("7", clamped=5)], 1: [report("9", clamped=0)]}, {0: "int8", 1: "bf16"})
    assert metrics["refit/clamped"] == 5  # a copy of the model that loses more, not the sum of the copies
    one, other = [report("7", scales="5")], [report("7", scales="6")]
    assert merge({0: one, 1: one}, {0: "int8", 1: "int8"})["refit/number"] == 4
    for differs in (other, [report("7")]):
        for pair in ((one, differs), (differs, one)):
            with pytest.raises(RefitError, match=line_naming("[0, 1]", "kv_scales")):
                merge(dict(enumerate(pair)), {0: "int8", 1: "int8"})


def test_a_renamed_metric_is_logged_under_both_names_and_that_is_told_once(caplog):
    renamed._tell.cache_clear()
    metrics = {"refit/verified": 3, "refit/replica1/wake_ms": 2.5, "refit/number": 1, "refit/skipped": 0}
    caplog.set_level("WARNING", logger="ascend_quant")
    for _ in range(2):
        found = renamed.with_old_names(metrics)
    assert found == metrics | {"refit/proved": 3, "refit/replica1/memory_ms": 2.5, "refit/left_out": 0}
    (said,) = (record.getMessage() for record in caplog.records)
    assert all(has_line_naming(said, f"refit/{old}", f"refit/{new}") for old, new in renamed.RENAMED.items())


TRAIN = [torch.tensor(values) for values in ([-1.0, -2.0, -3.0], [-1.0], [-0.5, -0.25], [-2.0, -4.0])]
OFF = [torch.tensor(values) for values in ([0.0, 0.5, 9.0], [0.25], [0.0, 0.0], [-0.75, 0.5])]  # rollout - trainer
ROLLOUT = [train + off for train, off in zip(TRAIN, OFF, strict=True)]
MASKS = [torch.tensor(values) for values in ([1, 1, 0], [1], [1, 1], [1, 1])]


def test_each_replica_is_measured_on_the_tokens_of_its_own_samples():
    metrics = replica_mismatch([1, 5, 1, 5], ROLLOUT, TRAIN, MASKS)
    for rank, differences in ((1, [0.0, 0.5, 0.0, 0.0]), (5, [0.25, -0.75, 0.5])):
        k3_kl = sum(math.exp(-d) - 1 + d for d in differences) / len(differences)
        assert metrics.pop(f"rollout_corr/replica{rank}/k3_kl") == pytest.approx(k3_kl, rel=1e-6)
        assert metrics.pop(f"rollout_corr/replica{rank}/samples") == 2
    assert not metrics
    masks = [MASKS[0], torch.tensor([0]), *MASKS[2:]]  # a replica whose samples have no tokens has no figures
    assert {name.split("/")[1] for name in replica_mismatch([0, 1, 0, 0], ROLLOUT, TRAIN, masks)} == {"replica0"}
    with pytest.raises(ValueError, match=line_naming("1 of 2", "finite")):
        replica_mismatch([0], [torch.tensor([-1.0, math.nan])], TRAIN[2:3], MASKS[2:3])


def test_samples_tell_their_replica_and_those_that_do_not_are_logged_once(caplog):
    caplog.set_level("WARNING", logger="ascend_quant")
    assert ranks_of([{REPLICA: 0, "turn_scores": []}, {REPLICA: 3}]) == [0, 3]
    for _ in range(2):
        assert ranks_of([{REPLICA: 0}, {"turn_scores": []}]) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_names_are_verls():
    helper = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper", reason="verl is not installed")
    ones = torch.ones(2, 3)
    _, _, found = helper.compute_rollout_correction_and_rejection_mask(-ones, -ones, ones, rollout_is="token")
    assert {NAME, CUT} <= set(found)


def words(correction, *steps: tuple[int, dict], caplog) -> list[str]:
    """What is logged of steps' metrics."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="ascend_quant"):
        one = EffectiveSample(correction)
        for step, metrics in steps:
            one.look(step, metrics)
    return [record.getMessage() for record in caplog.records]


def figures(share: float, bypass: bool = False) -> dict:
    return {metric(NAME, bypass): share, metric(CUT, bypass): 0.125}


@pytest.mark.parametrize("bypass", [False, True])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_low_share_is_told_with_its_name_once_in_so_many_steps(level: str, bypass: bool, caplog):
    asked = {"rollout_is": level, "bypass_mode": bypass}
    at_once = level == "sequence" and bypass  # where the figure misleads
    assert len(words(asked, caplog=caplog)) == at_once
    low = figures(LEAST - 0.01, bypass) | figures(1.0, not bypass)
    steps = [(1, figures(LEAST, bypass)), *((step, low) for step in range(2, 2 * EVERY + 2))]
    first, second = words(asked, *steps, caplog=caplog)[at_once:]
    assert has_line_naming(first, "step 2", "0.79", "12.5 %", metric(NAME, bypass))
    assert has_line_naming(second, f"step {2 + EVERY}")
    never = words(asked, (1, figures(1.0, not bypass)), caplog=caplog)[at_once:]  # the loss of bypass mode is not set
    assert metric(NAME, bypass) in never[0]
    for none in (None, {}, {"rollout_is": None}):
        assert not words(none, (1, figures(0.1)), (2, {}), caplog=caplog)


def test_the_trainer_looks_after_each_update_of_the_actor(caplog):
    """By then verl has the figures of either mode."""
    pytest.importorskip("verl", reason="the trainer is verl's")
    from ascend_quant.integrations.verl.trainer import with_refits

    class Trainer:
        global_steps = 7

        def _update_actor(self, batch, metrics):
            metrics.update(figures(0.5, bypass=True))
            return batch + 1

    trainer = object.__new__(with_refits(Trainer))
    trainer.effective_sample = EffectiveSample({"rollout_is": "token", "bypass_mode": True})
    with caplog.at_level(logging.WARNING, logger="ascend_quant"):
        assert trainer._update_actor(1, {}) == 2
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["step 7"]
