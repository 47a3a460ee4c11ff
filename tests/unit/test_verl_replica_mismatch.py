"""Each replica's mismatch is that of its own samples, and of the tokens that its model generated."""

import math

import pytest
import torch
from naming import line_naming

from ascend_quant.estimators import THRESHOLD
from ascend_quant.integrations.verl.replica_mismatch import REPLICA, ranks_of, replica_mismatch, upper_threshold

TRAIN = [torch.tensor(values) for values in ([-1.0, -2.0, -3.0], [-1.0], [-0.5, -0.25], [-2.0, -4.0])]
OFF = [torch.tensor(values) for values in ([0.0, 0.5, 9.0], [0.25], [0.0, 0.0], [-0.75, 0.5])]  # rollout - trainer
MASKS = [torch.tensor(values) for values in ([1, 1, 0], [1], [1, 1], [1, 1])]


def measured(ranks, masks=MASKS, threshold=2.0):
    rollout = [train + off for train, off in zip(TRAIN, OFF, strict=True)]
    return replica_mismatch(ranks, rollout, TRAIN, masks, threshold)


def expected(differences, threshold=2.0):
    weights = [min(math.exp(-d), threshold) for d in differences]
    count = len(differences)
    return {
        "k1_kl": sum(differences) / count,
        "k3_kl": sum(math.exp(-d) - 1 + d for d in differences) / count,
        "mean_abs": sum(abs(d) for d in differences) / count,
        "ess": (sum(weights) / count) ** 2 / (sum(w * w for w in weights) / count),
    }


@pytest.mark.parametrize("threshold", [2.0, 1.5])
def test_each_replica_is_measured_on_its_own_samples(threshold):
    metrics = measured([1, 5, 1, 5], threshold=threshold)
    for rank, differences in ((1, [0.0, 0.5, 0.0, 0.0]), (5, [0.25, -0.75, 0.5])):
        for name, value in expected(differences, threshold).items():
            assert metrics.pop(f"rollout_corr/replica{rank}/{name}") == pytest.approx(value, rel=1e-6)
        assert metrics.pop(f"rollout_corr/replica{rank}/samples") == 2
    assert not metrics


def test_a_replica_whose_samples_have_no_tokens_has_no_figures():
    masks = [MASKS[0], torch.tensor([0]), *MASKS[2:]]
    assert {name.split("/")[1] for name in measured([0, 1, 0, 0], masks)} == {"replica0"}


def test_samples_tell_their_replica():
    assert ranks_of([{REPLICA: 0, "turn_scores": []}, {REPLICA: 3}]) == [0, 3]


def test_samples_that_do_not_tell_are_logged_once(caplog):
    caplog.set_level("WARNING", logger="ascend_quant")
    for _ in range(2):
        assert ranks_of([{REPLICA: 0}, {"turn_scores": []}]) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "replica" in caplog.text


def test_a_log_probability_that_is_not_finite_is_an_error():
    rollout = [torch.tensor([-1.0, math.nan])]
    with pytest.raises(ValueError, match=line_naming("1 of 2 log-probabilities", "finite")):
        replica_mismatch([0], rollout, [torch.tensor([-1.0, -1.0])], [torch.tensor([1, 1])], 2.0)


@pytest.mark.parametrize(
    ("setting", "threshold"), [(3, 3.0), (1.5, 1.5), ("2.5", 2.5), ("0.5_4.0", 4.0), (None, THRESHOLD)]
)
def test_the_threshold_is_verls(setting, threshold):
    pytest.importorskip("verl", reason="verl's own reading of the setting is compared")
    from verl.trainer.ppo.rollout_corr_helper import _parse_rollout_is_threshold

    assert upper_threshold({"rollout_is_threshold": setting}) == threshold
    if setting is not None:
        assert _parse_rollout_is_threshold(setting)[0] == threshold


def test_without_rollout_correction_the_threshold_is_the_default():
    assert upper_threshold(None) == upper_threshold({}) == THRESHOLD
