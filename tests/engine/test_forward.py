"""What the engine computes, against the oracle's quantized forward in float32 on the same prompts."""

from functools import cache
from pathlib import Path

import pytest
import torch
from engines import engine, logprobs, prompts
from models import KINDS, make
from oracle_model import logprobs as oracle_logprobs

from ascend_quant.integrations.verl.metrics.estimators import mismatch

WHOLE = {"intermediate_size": 256, "moe_intermediate_size": 128, "num_key_value_heads": 4}  # blocks and groups
MODELS = [
    *((kind, "int8", {}) for kind in KINDS),
    *(("qwen2", scheme, WHOLE) for scheme in ("fp8", "fp8_block", "int4_g128")),
    *(("qwen3-moe", scheme, {**WHOLE, "head_dim": 64}) for scheme in ("fp8", "fp8_block", "int4_g32")),
]


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """Log-probabilities of a model in a scheme, by who computes them; each is computed once."""

    @cache
    def folder_of(kind: str, sizes: tuple) -> Path:
        return make(kind, tmp_path_factory.mktemp("models"), **dict(sizes))

    @cache
    def compute(kind: str, scheme: str, sizes: tuple) -> dict[str, torch.Tensor]:
        folder, found = folder_of(kind, sizes), {}
        for dtype in ("float32", "bfloat16"):
            with engine(folder, scheme, dtype=dtype) as llm:
                found[dtype] = logprobs(llm)
        return found | {"oracle": oracle_logprobs(folder, prompts(), scheme)}

    return compute


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: "-".join(model[:2]))
def measured(request, computed):
    """Log-probabilities by (who computes, "bf16" or "quantized")."""
    kind, scheme, sizes = request.param
    names, sizes = {"bf16": "bf16", "quantized": scheme}, tuple(sizes.items())
    return {(who, which): found for which, name in names.items() for who, found in computed(kind, name, sizes).items()}


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a - b).abs().mean().item()


def test_float32_engine_is_far_closer_to_the_oracle_than_quantization_is_to_float(measured):
    """In float32 what remains is the order of sums, which flips a code here and there."""
    assert distance(measured["float32", "bf16"], measured["oracle", "bf16"]) < 1e-3
    effect = distance(measured["oracle", "quantized"], measured["oracle", "bf16"])
    print(distance(measured["float32", "quantized"], measured["oracle", "quantized"]), effect)
    assert distance(measured["float32", "quantized"], measured["oracle", "quantized"]) < effect / 4


def test_quantization_costs_what_the_oracle_says_it_costs(measured, record_property):
    """mean |delta logprob| against bf16 <= the oracle's own, plus bf16's noise on both sides."""
    found = mismatch(measured["bfloat16", "quantized"], measured["bfloat16", "bf16"])
    effect = distance(measured["oracle", "quantized"], measured["oracle", "bf16"])
    noise = distance(measured["bfloat16", "bf16"], measured["oracle", "bf16"])
    record_property("mean_abs_delta_logprob", found.mean_abs)
    print(f"against bf16: {found}; the oracle's against float32: {effect:.4f}; bf16 noise: {noise:.4f}")
    assert 0 < found.mean_abs <= effect + 2 * noise
