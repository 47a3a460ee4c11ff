"""Checkpoints that the real llm-compressor makes: SmoothQuant with norms and pairs, plain rounding, GPTQ.

It is a test-only dependency (with its own compressed-tensors and transformers): skipped where it is not installed.
"""

from pathlib import Path

import checkpoint_pairs
import pytest
import torch

from ascend_quant.profile.checkpoints import Checkpoint
from ascend_quant.profile.compare import Comparison, compare_int8
from ascend_quant.profile.w8a8 import read_w8a8

llmcompressor = pytest.importorskip("llmcompressor", reason="llm-compressor is not installed")
NORM_1 = [["re:.*q_proj", "re:.*k_proj", "re:.*v_proj"], "re:.*input_layernorm"]
NORM_2 = [["re:.*gate_proj", "re:.*up_proj"], "re:.*post_attention_layernorm"]
NORM_2_MOE = [["re:.*mlp.gate$", "re:.*gate_proj", "re:.*up_proj"], "re:.*post_attention_layernorm"]
V_O, UP_DOWN = [["re:.*o_proj"], "re:.*v_proj"], [["re:.*down_proj"], "re:.*up_proj"]
# (kind, mappings, more of the config); the tool smooths v only where every head of o has its own head of v
CASES = {
    "qwen2": ("qwen2", [NORM_1, NORM_2, UP_DOWN], {}),
    "qwen2-v": ("qwen2", [NORM_1, V_O, NORM_2], {"num_key_value_heads": 4}),
    "qwen3-moe": ("qwen3-moe", [NORM_1, NORM_2_MOE, UP_DOWN], {}),
    "plain": ("qwen2", [], {}),
}


def made(folder: Path, case: str, dtype: torch.dtype, gptq: bool = False) -> Comparison:
    """The profile of what the tool makes of a BF16 checkpoint."""
    from datasets import Dataset
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
    from transformers import AutoModelForCausalLM

    kind, mappings, config = CASES[case]
    bf16 = checkpoint_pairs.make_bf16(kind, folder / "bf16", **config)
    model = AutoModelForCausalLM.from_pretrained(bf16, dtype=dtype)
    tokens = torch.randint(2, 60, (4, 64), generator=torch.Generator().manual_seed(0)).tolist()
    data = Dataset.from_list([{"input_ids": row, "attention_mask": [1] * len(row)} for row in tokens])
    last = (GPTQModifier if gptq else QuantizationModifier)(
        targets="Linear", scheme="W8A8", ignore=["lm_head", "re:.*mlp.gate$"]
    )
    recipe = [SmoothQuantModifier(smoothing_strength=0.5, mappings=mappings), last] if mappings else [last]
    settings = {"max_seq_length": 64, "num_calibration_samples": 4, "output_dir": str(folder / "w8a8")}
    llmcompressor.oneshot(model=model, dataset=data, recipe=recipe, **settings)
    return compare_int8(Checkpoint(bf16), read_w8a8(Checkpoint(folder / "w8a8")))


@pytest.mark.parametrize("dtype, arithmetic", [(torch.float32, "float32"), (torch.bfloat16, "bfloat16_quotient")])
@pytest.mark.parametrize("case", CASES)
def test_codes_are_reproduced_in_the_models_arithmetic(case, dtype, arithmetic, tmp_path):
    """On a CPU the tool rounds a BF16 model's weight / scale to BF16; in float32 the codes that differ do so by one."""
    result = made(tmp_path, case, dtype)
    assert result.profile.arithmetic == arithmetic
    assert min(one.equal[arithmetic] for one in result.reproduced) >= 0.999
    assert min(one.equal["float32"] for one in result.reproduced) >= 0.85
    assert max(one.steps for one in result.reproduced) < 0.5  # of a code: no further than its neighbours


def test_gptq_is_reported(tmp_path):
    result = made(tmp_path, "qwen2", torch.bfloat16, gptq=True)
    assert len(result.poor) == len(result.reproduced) == 14
    assert any("GPTQ" in remark for remark in result.profile.notes["remarks"])
    up = result.profile.rules["model.layers.0.mlp.up_proj.weight"]
    assert up.input_factor is not None and up.output_factor is not None
