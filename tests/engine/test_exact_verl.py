"""A GRPO run of verl whose actor computes the engine's INT8 policy: no token differs, and a planted bit is counted."""

import pytest

pytest.importorskip("verl", reason="the verl adapter needs verl")
pytest.importorskip("vllm", reason="the engine tests need vLLM")

from naming import has_line_naming
from verl_runs import QUANTIZED, prepare, train

from ascend_quant.integrations.verl.attention_settings import LIBRARY, NAME_KEY, PACKED

pytestmark = pytest.mark.timeout(600)

STEPS, SAMPLES, TEMPERATURE = 3, 32, 0.8
ENGINE = "actor_rollout_ref.rollout.engine_kwargs"
EXACT = (
    QUANTIZED,
    f"+{ENGINE}.ascend_quant.qat=int8_exact",
    f"+{ENGINE}.vllm.hf_overrides.quantization_config.quant_method=ascend_quant",
    f"+{ENGINE}.vllm.hf_overrides.quantization_config.exact=true",
    "algorithm.rollout_correction.bypass_mode=true",
    "algorithm.rollout_correction.rollout_is=null",
    f"actor_rollout_ref.rollout.temperature={TEMPERATURE}",
    "actor_rollout_ref.model.enable_gradient_checkpointing=true",
)
# a last bit of one token a micro-batch, where verl's loss gets log-probabilities
PLANTED = """
import torch
from ascend_quant.integrations.verl import log_probs

exact = log_probs.log_probs_of

def off_by_a_bit(*args, **kwargs):
    found = exact(*args, **kwargs)
    return found + torch.nn.functional.one_hot(torch.tensor(len(found) - 2), len(found)) * found.detach().abs() * 2**-23

log_probs.log_probs_of = off_by_a_bit
"""


@pytest.mark.parametrize("ulysses", [1, 2])
def test_no_token_of_two_ranks_is_unequal(ulysses, tmp_path):
    """Packed on two ranks of the actor, in several micro-batches, or both ranks at the same sequences."""
    packed = (
        "actor_rollout_ref.model.use_remove_padding=true",
        f"actor_rollout_ref.model.external_lib={LIBRARY}",
        f"++{NAME_KEY}={PACKED}",
        f"actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size={ulysses}",
        f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={ulysses}",
    )
    steps = train(prepare(tmp_path), *EXACT, *packed, workers=2, steps=STEPS)
    assert len(steps) == STEPS
    for step in steps:
        assert step["exact/tokens"] == pytest.approx(SAMPLES * step["response_length/mean"])
        assert step["exact/unequal"] == step["exact/max_diff"] == 0
        assert step["actor/ppo_kl"] == pytest.approx(0, abs=1e-7) and step["actor/grad_norm"] > 0
        assert not any("actor/exact" in name for name in step)
    assert len({step["refit/digest"] for step in steps}) == STEPS


def test_a_last_bit_is_counted_and_named(tmp_path):
    folder = prepare(tmp_path)
    (folder / "planted.py").write_text(PLANTED)
    library = "actor_rollout_ref.model.external_lib=planted"
    (step,) = train(folder, *EXACT, library, steps=1)
    assert step["exact/unequal"] == SAMPLES // 8, "one in each micro-batch"
    assert 0 < step["exact/max_diff"] < 1e-5
    assert has_line_naming((folder / "output.log").read_text(), "exact", "1 of", "row 7", "rank 0")
