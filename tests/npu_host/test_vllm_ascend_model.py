"""Whole vLLM models, built by vllm-ascend from our config on npu:0."""

import pytest

from npu_host import models, vllm_engine, whole_model

pytestmark = pytest.mark.each_version


@pytest.fixture(scope="module", params=list(models.CONFIGS))
def built(request, tmp_path_factory):
    """Whether it has experts, the model, vLLM's configuration."""
    with whole_model.built(vllm_engine.running, tmp_path_factory.mktemp("engine"), request.param) as found:
        yield found


def test_three_refits_are_the_oracles(built):
    moe, model, _ = built
    whole_model.three_refits_are_the_oracles(moe, model)


def test_codes_of_the_trainers_own_are_the_oracles(built):
    moe, model, _ = built
    whole_model.codes_of_the_trainers_own_are_the_oracles(moe, model)


def test_stacks_of_experts_are_the_oracles(built):
    moe, model, _ = built
    whole_model.stacks_of_experts_are_the_oracles(moe, model)


def test_a_bad_tensor_is_named_and_the_next_refit_heals(built):
    moe, model, _ = built
    whole_model.a_bad_tensor_is_named_and_the_next_refit_heals(moe, model)
