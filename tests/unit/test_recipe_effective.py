"""Recipes' importance weights: what they leave of a batch, and what verl would compute otherwise is refused."""

from math import log, sqrt

import pytest
import torch
from test_recipe_files import error, write

from ascend_quant.integrations.verl.effective_sample import NAME
from launch.recipes import load, names
from launch.recipes.effective import KL, LEAST, effective_share, longest, told


@pytest.mark.parametrize("threshold", [1.5, 2.0, 5.0])
@pytest.mark.parametrize("tokens, kl", [(128, 1e-4), (2048, 1e-4), (10240, 1e-4), (512, 1e-3), (30720, 1e-5)])
def test_the_share_is_that_of_drawn_weights(tokens: int, kl: float, threshold: float):
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(400_000, generator=generator, dtype=torch.float64)
    weights = (sqrt(2 * tokens * kl) * noise - tokens * kl).clamp(max=log(threshold)).exp()
    drawn = weights.mean() ** 2 / (weights**2).mean()
    assert effective_share(tokens, kl, threshold) == pytest.approx(drawn.item(), abs=5e-3)


def test_longest_is_the_last_that_leaves_enough():
    assert effective_share(longest(2.0), KL, 2.0) >= LEAST > effective_share(longest(2.0) + 10, KL, 2.0)


def test_no_recipe_trains_without_its_weights():
    for name in names():
        recipe = load(name)
        if (correction := recipe.correction) is None:
            continue
        assert not (correction.bypass and correction.batch_normalize), name
        if correction.level == "sequence":
            assert effective_share(recipe.rollout.max_response_length, 1e-4, correction.threshold) >= 0.8, name
        assert correction.level in told(recipe) and NAME in told(recipe), name
        assert ("actor/rollout_corr/" in told(recipe)) == correction.bypass, name


def lengths(response: int) -> dict:
    return {"max_prompt_length": 16, "max_response_length": response}


@pytest.mark.parametrize(
    "correction, response, words",
    [
        ({"level": "token", "bypass": True, "batch_normalize": True}, 32, ("batch_normalize", "bypass")),
        ({"level": "sequence", "bypass": True, "batch_normalize": True}, 32, ("batch_normalize", "bypass")),
        ({"level": "sequence"}, 10240, ("sequence", "10240", "0.49")),
        ({"level": "sequence", "batch_normalize": True}, longest(2.0) + 10, ("sequence", str(longest(2.0)))),
    ],
)
def test_what_corrects_nothing_is_refused(tmp_path, correction: dict, response: int, words: tuple[str, ...]):
    said = error(tmp_path, correction=correction, rollout=lengths(response))
    assert all(word in said for word in words)


@pytest.mark.parametrize(
    "correction, response",
    [
        ({"level": "token", "bypass": True}, 30720),
        ({"level": "token", "batch_normalize": True}, 30720),
        ({"level": "sequence", "batch_normalize": True}, longest(2.0)),
        (None, 30720),
    ],
)
def test_what_corrects_is_taken(tmp_path, correction: dict | None, response: int):
    write(tmp_path, correction=correction, rollout=lengths(response))
    assert load("one", tmp_path)
