"""A GRPO run of verl whose actor computes the engine's INT8 policy: no token differs, and a planted bit is counted."""

import re
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="the verl adapter needs verl")
pytest.importorskip("vllm", reason="the engine tests need vLLM")

from naming import has_line_naming, line_naming
from transformers import AutoModelForCausalLM
from verl_runs import QUANTIZED, prepare, train

from ascend_quant.integrations.verl.training.attention_settings import LIBRARY, NAME_KEY, PACKED

pytestmark = pytest.mark.timeout(600)

STEPS, SAMPLES, TEMPERATURE, WORDS = 3, 32, 0.8, 64
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
STRICT = f"+{ENGINE}.ascend_quant.strict=true"
# a last bit of one token a micro-batch, where verl gets log-probabilities
PLANTED = """
import torch
from ascend_quant.integrations.verl.training import log_probs

exact = log_probs.log_probs_of

def off_by_a_bit(*args, **kwargs):
    found = exact(*args, **kwargs)
    if not ({when}):
        return found
    return found + torch.nn.functional.one_hot(torch.tensor(len(found) - 2), len(found)) * found.detach().abs() * 2**-23

log_probs.log_probs_of = off_by_a_bit
"""


def padded(folder: Path) -> Path:
    """Give a model a padded vocabulary, as Qwen's have: verl's engine never samples the words beyond the tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    model.resize_token_embeddings(WORDS, mean_resizing=False)
    model.save_pretrained(folder / "model")
    return folder


def planted(folder: Path, when: str) -> tuple[Path, str]:
    """A run's folder, and the setting that plants the bit in its actor when `when` is true."""
    (folder / "planted.py").write_text(PLANTED.format(when=when))
    return folder, "actor_rollout_ref.model.external_lib=planted"


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
    folder = padded(prepare(tmp_path))
    steps = train(folder, *EXACT, STRICT, *packed, workers=2, steps=STEPS)
    assert len(steps) == STEPS
    for step in steps:
        assert step["exact/tokens"] == pytest.approx(SAMPLES * step["response_length/mean"])
        assert step["exact/unequal"] == step["exact/max_diff"] == step["exact/k3_kl"] == 0
        assert step["actor/ppo_kl"] == pytest.approx(0, abs=1e-7) and step["actor/grad_norm"] > 0
        assert not any("actor/exact" in name or "rollout_corr" in name for name in step)
    assert all(step["refit/changed"] > 0 for step in steps)
    log = (folder / "output.log").read_text()
    assert re.search(r"  exact probe +[0-9.]+ +\d+ %$", log, re.M), "a stage of the start"
    assert has_line_naming(log, "exact", "probe", "agree … agree")


def test_a_last_bit_is_counted_and_named(tmp_path):
    """Above 0.1 % of the tokens the trainer takes to token weights, from step 2 on. Updates alone have the fault."""
    folder, library = planted(prepare(tmp_path), "torch.is_grad_enabled()")
    first, second = train(folder, *EXACT, library, steps=2)
    assert first["exact/unequal"] == SAMPLES // 8, "one in each micro-batch"
    assert 0 < first["exact/max_diff"] < 1e-5 and 0 < first["exact/k3_kl"] < 1e-10
    weights = "rollout_corr/rollout_is_eff_sample_size"
    assert weights not in first and second[weights] == pytest.approx(1, abs=1e-6)
    log = (folder / "output.log").read_text()
    assert has_line_naming(log, "exact", "step 1", f"{SAMPLES // 8} of", "rank 0", "engine", "trainer")
    probes = [line for line in log.splitlines() if has_line_naming(line, "exact", "probe", "prefill")]
    assert len(probes) == 2, "at the start, and with the first token's sequence"
    assert all(has_line_naming(line, "agree … agree") for line in probes)


def test_strict_ends_a_run_and_names_the_side(tmp_path):
    folder, library = planted(prepare(tmp_path), "True")
    said = line_naming(
        "RefitError", "exact", "probe", "prefill … agree", "trainer … differ", "stages … agree", "lm_head"
    )
    with pytest.raises(AssertionError, match=said):
        train(folder, *EXACT, STRICT, library, steps=1)
    assert not (folder / "metrics.jsonl").exists()
