"""The log's word on importance weights: when it comes, under which of verl's names it looks, and how often."""

import logging

import pytest

from ascend_quant.integrations.verl.effective_sample import CUT, EVERY, LEAST, NAME, EffectiveSample, metric


def words(correction, *steps: tuple[int, dict], caplog) -> list[str]:
    with caplog.at_level(logging.WARNING, logger="ascend_quant"):
        one = EffectiveSample(correction)
        for step, metrics in steps:
            one.look(step, metrics)
    return [record.getMessage() for record in caplog.records]


def figures(share: float, bypass: bool = False) -> dict:
    return {metric(NAME, bypass): share, metric(CUT, bypass): 0.125}


@pytest.mark.parametrize("bypass", [False, True])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_low_share_is_told_with_its_name_and_what_to_do(level: str, bypass: bool, caplog):
    asked = {"rollout_is": level, "bypass_mode": bypass}
    said = words(asked, (3, figures(LEAST - 0.01, bypass) | figures(1.0, not bypass)), caplog=caplog)[-1]
    assert all(word in said for word in ("step 3", "0.79", "12.5 %", metric(NAME, bypass)))
    assert ("correction.level" in said) == (level == "sequence")
    assert ("mismatch" in said) == (level == "token")


def test_a_good_share_and_a_run_without_weights_are_not_told(caplog):
    assert not words({"rollout_is": "token"}, (1, figures(LEAST)), caplog=caplog)
    for none in (None, {}, {"rollout_is": None}):
        assert not words(none, (1, figures(0.1)), (2, {}), caplog=caplog)


def test_it_is_said_once_in_so_many_steps(caplog):
    steps = [(step, figures(0.5)) for step in range(1, 2 * EVERY + 1)]
    assert [said.split(":")[0] for said in words({"rollout_is": "token"}, *steps, caplog=caplog)] == [
        "step 1",
        f"step {1 + EVERY}",
    ]


def test_a_good_step_does_not_put_it_off(caplog):
    assert words({"rollout_is": "token"}, (1, figures(1.0)), (2, figures(0.5)), caplog=caplog)[0].startswith("step 2")


@pytest.mark.parametrize("bypass", [False, True])
def test_weights_that_verl_never_computed_are_told(bypass: bool, caplog):
    """As where the loss of bypass mode is not set: the other mode's name does not count."""
    asked = {"rollout_is": "token", "bypass_mode": bypass}
    assert metric(NAME, bypass) in words(asked, (1, figures(1.0, not bypass)), caplog=caplog)[0]


@pytest.mark.parametrize(("level", "bypass", "told"), [("sequence", 1, 1), ("sequence", 0, 0), ("token", 1, 0)])
def test_where_the_figure_misleads_is_told_at_once(level: str, bypass: int, told: int, caplog):
    assert len(words({"rollout_is": level, "bypass_mode": bool(bypass)}, caplog=caplog)) == told


def test_the_names_are_verls():
    """Those of its own function, and of its actor's metrics."""
    helper = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper", reason="verl is not installed")
    import torch

    ones = torch.ones(2, 3)
    _, _, found = helper.compute_rollout_correction_and_rejection_mask(-ones, -ones, ones, rollout_is="token")
    assert {NAME, CUT} <= set(found)


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
