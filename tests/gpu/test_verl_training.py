"""Three steps of verl with INT8 rollouts: the sequences on one GPU each, and shared by two (Ulysses)."""

from math import isfinite

import pytest
import trainings

RECIPE = "qwen2.5-7b-int8-gsm8k-h100"
STEPS = 3
BOTH = {"correction.bypass": "false"}  # both log-probabilities of each token are computed, and compared
MISMATCH = 0.05  # KL (k3) between rollout and trainer. Wrong attention is far off: its logits differ by 0.4


@pytest.mark.parametrize("sequence_parallel", [1, 2])
def test_three_steps(sequence_parallel, tmp_path):
    if sequence_parallel > trainings.GPUS:
        pytest.skip(f"needs {sequence_parallel} GPUs")
    trainings.write_model("qwen2", tmp_path / "qwen2")
    changes = BOTH | {"training.sequence_parallel": sequence_parallel}
    outcome = trainings.train(RECIPE, tmp_path, tmp_path / "logs", sequence_parallel, STEPS, changes)
    assert outcome.result is not None, outcome.error
    assert outcome.result["faults"] == []
    for line in outcome.result["steps"]:
        step = line["data"]
        assert step["refit/proved"] == step["refit/tensors"] > 0
        assert isfinite(step["actor/grad_norm"]) and step["actor/grad_norm"] > 0
        assert 0 <= step["rollout_corr/k3_kl"] < MISMATCH
