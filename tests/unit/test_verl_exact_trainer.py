"""A run reacts to tokens that differ: a warning, token weights above 0.1 %, an error where it is strict."""

from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="the verl adapter needs verl")
pytest.importorskip("vllm", reason="an exact actor's products are vLLM's")

from naming import has_line_naming, line_naming
from omegaconf import OmegaConf

from ascend_quant.integrations.verl.training.effective_sample import EffectiveSample
from ascend_quant.integrations.verl.training.exact.trainer import ExactTrainer
from ascend_quant.integrations.verl.training.exact.worker import Unequal
from ascend_quant.refit import RefitError

FIRST = Unequal(tokens=list(range(12)), prompt=5, position=3, engine=-1.0, trainer=-1.25, rank=1)
FINGERPRINT = {"torch": "2.13.0", "device": "H200"}


class Remote:
    """A method of a Ray actor whose result is there."""

    def __init__(self, value):
        self.value = value

    def remote(self):
        return self.value


class Steps:
    """A stand-in for verl's trainer with the methods that an update calls; `batch` is the count of unequal tokens."""

    global_steps = 1

    def __init__(self, strict=False, engine=FINGERPRINT, trainer=(FINGERPRINT, FINGERPRINT)):
        options = {"qat": "int8_exact", "strict": strict}
        algorithm = {"rollout_correction": {"bypass_mode": True, "rollout_is": None, "rollout_is_threshold": 2.0}}
        parts = {"rollout": {"engine_kwargs": {"ascend_quant": options}}}
        self.config = OmegaConf.create({"actor_rollout_ref": parts, "algorithm": algorithm})
        OmegaConf.set_struct(self.config, True)
        self.effective_sample = EffectiveSample(algorithm["rollout_correction"])
        self.engine = engine
        self.actor_rollout_wg = SimpleNamespace(
            exact_first_unequal=lambda: [None, FIRST], exact_fingerprint=lambda: list(trainer)
        )

    def _synced(self):
        return [SimpleNamespace(servers=[SimpleNamespace(exact_fingerprint=Remote([self.engine]))])]

    def _update_actor(self, batch, metrics):
        metrics.update({"actor/exact/tokens": 10_000, "actor/exact/unequal": batch})
        return batch


class Trainer(ExactTrainer, Steps):
    pass


@pytest.fixture(autouse=True)
def nothing_of_ray(monkeypatch):
    monkeypatch.setattr("ray.get", lambda values: values)


def weights(trainer):
    correction = trainer.config.algorithm.rollout_correction
    return correction.bypass_mode, correction.rollout_is, trainer.effective_sample.level


def test_a_few_tokens_are_told_once(caplog):
    trainer, metrics = Trainer(), {}
    for unequal in (0, 1, 10):
        trainer._update_actor(unequal, metrics)
        assert weights(trainer) == (True, None, None)
    assert metrics == {"exact/tokens": 10_000, "exact/unequal": 10}
    (record,) = caplog.records
    told = ("exact", "step 1", "1 of 10000", "token 3", "answer of 7", "prompt of 5", "rank 1", -1, -1.25)
    assert has_line_naming(record.getMessage(), *told)
    assert trainer.suspect == FIRST


def test_more_than_a_thousandth_turns_token_weights_on(caplog):
    trainer = Trainer()
    for unequal in (1, 11, 12):
        trainer._update_actor(unequal, {})
    assert weights(trainer) == (False, "token", "token")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3 and has_line_naming(said[1], "11 of 10000") and has_line_naming(said[2], "rollout_is=token")


def test_strict_ends_at_the_first_token():
    trainer = Trainer(strict=True)
    trainer._update_actor(0, {})
    with pytest.raises(RefitError, match=line_naming("exact", "1 of 10000", "token 3", "rank 1")):
        trainer._update_actor(1, {})


@pytest.mark.parametrize("given, longest", [(None, 5120), (4096, 4096)])
def test_a_probe_knows_how_long_sequences_may_be(given, longest):
    """verl leaves max_model_len at null."""
    trainer = Trainer()
    OmegaConf.set_struct(trainer.config, False)
    trainer.config.actor_rollout_ref.rollout.update(
        {"max_model_len": given, "prompt_length": 1024, "response_length": 4096}
    )
    assert trainer._longest == longest


@pytest.mark.parametrize("side", ["engine", "another rank of the trainer"])
def test_an_environment_that_differs_is_refused(side):
    other = {**FINGERPRINT, "device": "H100"}
    given = {"engine": other} if side == "engine" else {"trainer": (FINGERPRINT, other)}
    with pytest.raises(RefitError, match=line_naming("int8_exact", "device", "H100", "H200")):
        Trainer(**given)._compare_fingerprints()
    Trainer()._compare_fingerprints()
