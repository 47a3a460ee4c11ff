"""Three steps of verl with INT8 rollouts: one GPU, sequences shared by two (Ulysses), codes sent, rollouts apart."""

from math import isfinite

import pytest
import trainings

RECIPE = "qwen2.5-7b-int8-gsm8k-h100"
STEPS = 3
BOTH = {"correction.bypass": "false"}  # both log-probabilities of each token are computed, and compared
MISMATCH = 0.05  # KL (k3) between rollout and trainer. Wrong attention is far off: its logits differ by 0.4
WAYS = {  # GPUs, and what is changed of the recipe; those apart take cupy. `apart` and `room` were not seen on GPUs
    "alone": (1, {}),
    "room": (1, {"verl.actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes": "null"}),
    "ulysses": (2, {"training.sequence_parallel": 2}),
    "codes": (1, {"rollout.send": "int8"}),
    "int8 cache": (1, {"rollout.kv_cache": "int8"}),
    "fp8 cache": (1, {"rollout.kv_cache": "fp8"}),
    "apart": (2, {"rollout.send": "int8", "rollout.apart": 1}),
    "apart, changes alone": (2, {"rollout.send": "delta", "rollout.apart": 1}),
}


@pytest.mark.parametrize("way", WAYS)
def test_three_steps(way, tmp_path):
    gpus, changes = WAYS[way]
    if gpus > trainings.GPUS:
        pytest.skip(f"needs {gpus} GPUs")
    trainings.write_model("qwen2", tmp_path / "qwen2")
    outcome = trainings.train(RECIPE, tmp_path, tmp_path / "logs", gpus, STEPS, BOTH | changes)
    assert outcome.result is not None, outcome.error
    assert outcome.result["faults"] == []
    for line in outcome.result["steps"]:
        step = line["data"]
        assert step["refit/verified"] > 0
        assert (step["refit/prequantized"] > 0) == ("rollout.send" in changes)
        assert (step["refit/bytes_kept"] > 0) == (way == "room" and not trainings.ON_CPU)
        assert isfinite(step["actor/grad_norm"]) and step["actor/grad_norm"] > 0
        assert 0 <= step["rollout_corr/k3_kl"] < MISMATCH
