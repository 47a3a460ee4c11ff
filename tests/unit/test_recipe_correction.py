"""What verl's actor computes with a recipe's correction: its own loss, called as its workers call it, against the rule.

verl 0.9.1 keeps the loss in each worker's own configuration; `algorithm.rollout_correction` alone would leave it PPO's.
"""

import pytest
import torch
from torch import Tensor

pytest.importorskip("verl", reason="verl is not installed")

from hydra import compose, initialize_config_module

from launch.recipes import load, paths_of, resolve

SAMPLED = torch.tensor([[-1.0, -2.0, -0.5], [-0.3, -0.2, -0.1], [-4.0, -1.0, 0.0]])  # by the engine
TRAINED = torch.tensor([[-0.9, -1.5, -0.6], [-0.4, -0.6, -0.1], [-1.0, -1.0, 0.0]])  # of the same tokens
REAL = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])  # 1 where there is a token
ADVANTAGES = torch.tensor([[0.5], [-1.0], [2.0]]).expand(3, 3)


def loss_of(name: str) -> tuple[Tensor, Tensor, str]:
    """The actor's loss and its gradient under a recipe, and the name of the loss."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.utils.config import omega_conf_to_dataclass

    recipe = load(name)
    overrides = resolve(recipe, paths_of(recipe, "/m", "/d", "/o")).overrides
    with initialize_config_module("verl.trainer.config", version_base=None):
        actor = omega_conf_to_dataclass(compose("ppo_trainer", overrides=list(overrides)).actor_rollout_ref.actor)
    mode, trained = actor.policy_loss.loss_mode, TRAINED.clone().requires_grad_()
    arguments = {"old_log_prob": SAMPLED, "log_prob": trained, "advantages": ADVANTAGES, "response_mask": REAL}
    loss, _ = get_policy_loss_fn(mode)(**arguments, loss_agg_mode=actor.loss_agg_mode, config=actor)
    loss.backward()
    return loss.detach(), trained.grad, mode


@pytest.mark.parametrize("name", ["qwen2.5-7b-int8-gsm8k-a2", "qwen3-30b-a3b-int8-grpo-a3"])
def test_bypass_is_the_policy_gradient_with_a_weight_for_each_sequence(name: str):
    weights = ((TRAINED - SAMPLED) * REAL).sum(-1).exp()
    assert weights.max() > 2 > weights.min(), "some are cut, some are not"
    weights = weights.clamp(max=2)
    weights = weights / weights.mean()
    gradient = -(weights[:, None] * ADVANTAGES * REAL) / REAL.sum()
    loss, found, mode = loss_of(name)
    assert mode == "bypass_mode"
    torch.testing.assert_close(found, gradient)
    torch.testing.assert_close(loss, (gradient * TRAINED).sum())


def test_without_bypass_the_clip_is_at_work():
    """DAPO's: a token that has become likelier than 1.28 times teaches no more, if it was good; 10, if it was bad."""
    ratio = (TRAINED - SAMPLED).exp()
    kept = torch.where(ADVANTAGES > 0, ratio <= 1.28, ratio >= 0.8).float() * REAL
    gradient = -(ratio * ADVANTAGES * kept) / REAL.sum()
    _, found, mode = loss_of("qwen2.5-7b-int8-dapo-a2")
    assert mode == "vanilla"
    assert (found == 0).any() and (found != 0).any()
    torch.testing.assert_close(found, gradient)
