"""verl's trainer reads the settings of exact recipes, whose actor computes the rollout's policy.

Its own methods of a step, on an answer's fields in a stand-in for the transfer queue. What the actor's loss then is:
unit/test_recipe_correction.py and unit/test_correction_gradients.py.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from test_recipes_verl import of
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils

from launch.recipes import load, names

EXACT = [name for name in names() if load(name).is_exact]
KEYS = ["a_0_0", "a_1_0"]  # two answers to one prompt, of three tokens and of two
SAMPLED = [[-1.0, -2.0, -30.0], [-0.5, -0.25]]  # a token that rejection would leave out, were the other policy's 0
MASK = [[1, 1, 1], [1, 1]]


class AskedTheActor(Exception):
    """Raised where the trainer asks the actor for log-probabilities."""


def jagged(rows: list[list[float]]) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


class Queue:
    """verl's transfer queue: what the rollout has put there, and what the trainer puts beside it."""

    def __init__(self):
        scores = [[0.0, 0.0, 1.0], [0.0, 0.0]]
        tensors = {"rollout_log_probs": SAMPLED, "response_mask": MASK, "rm_scores": scores}
        fields = {name: jagged(rows) for name, rows in tensors.items()}
        self.kept = tensordict_utils.get_tensordict({**fields, "uid": ["a", "a"]})
        self.put: dict[str, torch.Tensor] = {}

    def kv_batch_get(self, select_fields: list[str], **_: Any) -> TensorDict:
        return self.kept.select(*select_fields, strict=False)

    def kv_batch_put(self, fields: TensorDict, **_: Any) -> None:
        self.put |= dict(fields.items())
        self.kept.update(fields)


def step(name: str, monkeypatch) -> dict[str, torch.Tensor]:
    """Return the fields that an update gets beside the rollout's own; a KL loss's reference is left out."""

    def compute_log_prob(_: Any) -> None:
        raise AskedTheActor

    queue = Queue()
    monkeypatch.setattr(trainer_base, "tq", queue)
    config = of(name)
    trainer = SimpleNamespace(config=config, actor_rollout_wg=SimpleNamespace(compute_log_prob=compute_log_prob))
    batch = KVBatchMeta(keys=KEYS, tags=[{}, {}], partition_id="train")
    PPOTrainer._compute_old_log_prob(trainer, batch, {})
    PPOTrainer._compute_advantage(trainer, batch, {})
    return queue.put


@pytest.mark.parametrize("name", EXACT)
def test_the_old_policy_is_the_rollouts_and_nothing_is_weighed_or_left_out(name: str, monkeypatch):
    put = step(name, monkeypatch)
    assert {"old_log_probs", "advantages"} <= set(put)
    assert [row.tolist() for row in put["old_log_probs"].unbind()] == SAMPLED
    assert not {"rollout_is_weights", "response_mask"} & set(put)
    assert put["advantages"].values().abs().min() > 0


def test_dapos_int8_twin_has_a_pass_for_its_old_policy(monkeypatch):
    with pytest.raises(AskedTheActor):
        step("qwen2.5-7b-int8-dapo-h100", monkeypatch)
