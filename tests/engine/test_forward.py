"""What the engine computes, against the oracle's quantized forward in float32 on the same prompts."""

import pytest
import torch
from engines import engine, logprobs, prompts
from models import KINDS, make
from oracle_model import logprobs as oracle_logprobs

from ascend_quant.mismatch import mismatch


@pytest.fixture(scope="module", params=KINDS)
def measured(request, tmp_path_factory):
    folder = make(request.param, tmp_path_factory.mktemp("models"))
    found = {}
    for dtype in ("float32", "bfloat16"):
        for scheme in ("bf16", "int8"):
            with engine(folder, scheme, dtype=dtype) as llm:
                found[dtype, scheme] = logprobs(llm)
    for scheme in ("bf16", "int8"):
        found["oracle", scheme] = oracle_logprobs(folder, prompts(), quantized=scheme == "int8")
    return found


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a - b).abs().mean().item()


def test_float32_engine_is_far_closer_to_the_int8_oracle_than_int8_is_to_float(measured):
    """In float32 what remains is the order of sums, which flips a code here and there."""
    assert distance(measured["float32", "bf16"], measured["oracle", "bf16"]) < 1e-3
    effect = distance(measured["oracle", "int8"], measured["oracle", "bf16"])
    print(distance(measured["float32", "int8"], measured["oracle", "int8"]), effect)
    assert distance(measured["float32", "int8"], measured["oracle", "int8"]) < effect / 4


def test_int8_costs_what_the_oracle_says_it_costs(measured, record_property):
    """mean |delta logprob| of int8 against bf16 <= the oracle's own, plus bf16's noise on both sides."""
    found = mismatch(measured["bfloat16", "int8"], measured["bfloat16", "bf16"])
    effect = distance(measured["oracle", "int8"], measured["oracle", "bf16"])
    noise = distance(measured["bfloat16", "bf16"], measured["oracle", "bf16"])
    record_property("mean_abs_delta_logprob", found.mean_abs)
    print(f"int8 vs bf16: {found}; the oracle's int8 vs float32: {effect:.4f}; bf16 noise: {noise:.4f}")
    assert 0 < found.mean_abs <= effect + 2 * noise
