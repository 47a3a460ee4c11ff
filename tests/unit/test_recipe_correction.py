"""Recipes' importance weights: what verl's actor computes with them, called as its workers call it, against the rule;
what they leave of a batch; and what would correct nothing is refused.

verl 0.9.1 keeps the loss in each worker's own configuration; `algorithm.rollout_correction` alone would leave it PPO's.
"""

from math import log, sqrt

import pytest
import torch
from naming import has_line_naming
from test_recipe_files import error, write
from torch import Tensor

pytest.importorskip("verl", reason="verl is not installed")

from hydra import compose, initialize_config_module

from ascend_quant.integrations.verl.training.effective_sample import LEAST
from launch.recipes import load, names, paths_of, resolve
from launch.recipes.rules import SEQUENCE_TOKENS

SAMPLED = torch.tensor([[-1.0, -2.0, -0.5], [-0.3, -0.2, -0.1], [-4.0, -1.0, 0.0]])  # by the engine
TRAINED = torch.tensor([[-0.9, -1.5, -0.6], [-0.4, -0.6, -0.1], [-1.0, -1.0, 0.0]])  # of the same tokens
REAL = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])  # 1 where there is a token
ADVANTAGES = torch.tensor([[0.5], [-1.0], [2.0]]).expand(3, 3)
CORRECTION = "algorithm.rollout_correction"
SEQUENCE = ["correction=token", f"{CORRECTION}.rollout_is=sequence"]
RECIPES = {name: load(name) for name in names()}
EXACT = [name for name, recipe in RECIPES.items() if recipe.is_exact]
CLIP = {name: 1.2 if "gsm8k" in name else 1.28 for name in EXACT}  # verl's default, and DAPO's
BYPASS = [name for name, recipe in RECIPES.items() if recipe.bypass and recipe.correction]


def loss_of(name: str, sequences: int = 3) -> tuple[Tensor, Tensor, str, set[str]]:
    """The actor's loss and its gradient under a recipe, of micro-batches of so many sequences, the loss's name, and
    the parts of verl's log that its metrics go to."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.utils.config import omega_conf_to_dataclass

    recipe = RECIPES[name]
    overrides = resolve(recipe, paths_of(recipe, "/m", "/d", "/o"))
    with initialize_config_module("verl.trainer.config", version_base=None):
        actor = omega_conf_to_dataclass(compose("ppo_trainer", overrides=list(overrides)).actor_rollout_ref.actor)
    mode, trained = actor.policy_loss.loss_mode, TRAINED.clone().requires_grad_()
    actor.global_batch_info.update(batch_num_tokens=REAL.sum(), dp_size=1)  # as verl's workers do for each mini-batch
    total, logged = torch.zeros(()), set()
    for one in torch.arange(len(REAL)).split(sequences):
        arguments = {"old_log_prob": SAMPLED[one], "log_prob": trained[one], "advantages": ADVANTAGES[one]}
        loss_fn = get_policy_loss_fn(mode)
        loss, metrics = loss_fn(**arguments, response_mask=REAL[one], loss_agg_mode=actor.loss_agg_mode, config=actor)
        loss.backward()
        total += loss.detach()
        logged |= {metric.split("/")[0] for metric in metrics}
    return total, trained.grad, mode, logged


@pytest.mark.parametrize("sequences", [3, 1])
@pytest.mark.parametrize("name", BYPASS)
def test_bypass_is_the_policy_gradient_with_a_weight_for_each_token(name: str, sequences: int):
    """However its sequences are shared out: a weight that were normalized in each micro-batch would be another."""
    weights = (TRAINED - SAMPLED).exp()
    assert (weights * REAL).max() > 2 > weights.min(), "some are cut, some are not"
    gradient = -(weights.clamp(max=2) * ADVANTAGES * REAL) / REAL.sum()
    loss, found, mode, logged = loss_of(name, sequences)
    assert mode == "bypass_mode" and "rollout_corr" in logged
    torch.testing.assert_close(found, gradient)
    torch.testing.assert_close(loss, (gradient * TRAINED).sum())


@pytest.mark.parametrize("name, high", [("qwen2.5-7b-int8-dapo-a2", 1.28), *((name, CLIP[name]) for name in EXACT)])
def test_without_the_policy_gradient_the_clip_is_at_work(name: str, high: float):
    """DAPO's: a token that has become likelier than 1.28 times teaches no more, if it was good; 10, if it was bad.

    Exact actors have it too, though the old policy's log-probabilities are the rollout's; verl then logs no mismatch.
    """
    ratio = (TRAINED - SAMPLED).exp()
    kept = torch.where(ADVANTAGES > 0, ratio <= high, ratio >= 0.8).float() * REAL
    gradient = -(ratio * ADVANTAGES * kept) / REAL.sum()
    _, found, mode, logged = loss_of(name)
    assert mode == "vanilla" and "rollout_corr" not in logged
    assert (found == 0).any() and (found != 0).any()
    torch.testing.assert_close(found, gradient)


def share_of(tokens: int, kl: float = 1e-4, threshold: float = 2.0) -> float:
    """What clipped weights of sequences leave of a batch, E[w]^2 / E[w^2], where their logarithm is normal."""
    at = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    density = (-at * at / 2).exp() / (-at * at / 2).exp().sum()
    weight = (sqrt(2 * tokens * kl) * at - tokens * kl).clamp(max=log(threshold)).exp()
    return ((weight * density).sum() ** 2 / (weight**2 * density).sum()).item()


def test_sequences_are_refused_from_the_length_at_which_their_weights_leave_too_little(tmp_path):
    assert share_of(SEQUENCE_TOKENS) > LEAST > share_of(SEQUENCE_TOKENS + 100)
    assert load(write(tmp_path), [*SEQUENCE, f"data.max_response_length={SEQUENCE_TOKENS}"])
    message = error(tmp_path, *SEQUENCE, "data.max_response_length=10240")
    assert has_line_naming(message, f"{CORRECTION}.rollout_is: sequence", "10240")
    assert load(write(tmp_path), ["correction=bypass", "data.max_response_length=30720"])


def test_a_mean_over_micro_batches_is_refused(tmp_path):
    normalized = f"{CORRECTION}.rollout_is_batch_normalize=true"
    assert load(write(tmp_path), ["correction=token", normalized])
    assert has_line_naming(error(tmp_path, "correction=bypass", normalized), "rollout_is_batch_normalize", "bypass")


def test_no_recipe_trains_without_its_weights():
    for recipe in RECIPES.values():
        assert recipe.is_exact == (recipe.correction is None)
