"""verl's settings for importance weights against the difference between the rollout's policy and the trainer's.

In bypass mode the weights are part of the actor's loss. Neither verl 0.9.1 (trainer v1) nor the older commit takes the
loss from `algorithm.rollout_correction`: their workers have a configuration of their own, made before that is looked
at, and would quietly use PPO's clipped loss without any weights. So the actor is told the same once more.
"""

from typing import Any

from launch.recipes.fields import Correction
from launch.recipes.keys import CORRECTION, POLICY_LOSS, ROLLOUT


def correction_settings(correction: Correction | None) -> dict[str, Any]:
    """The settings by their dotted keys. Nothing is rejected or vetoed: that is verl's default."""
    if correction is None:
        return {f"{CORRECTION}.rollout_is": None}
    weights = {
        "rollout_is": correction.level,
        "rollout_is_threshold": correction.threshold,
        "rollout_is_batch_normalize": correction.batch_normalize,
        "bypass_mode": correction.bypass,
        **({"loss_type": "reinforce"} if correction.bypass else {}),  # its other loss ignores the weights
    }
    return {
        f"{ROLLOUT}.calculate_log_probs": True,
        **{f"{CORRECTION}.{name}": value for name, value in weights.items()},
        **(_loss(weights) if correction.bypass else {}),
    }


def _loss(weights: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{POLICY_LOSS}.loss_mode": "bypass_mode",
        **{f"{POLICY_LOSS}.rollout_correction.{name}": value for name, value in weights.items()},
    }
