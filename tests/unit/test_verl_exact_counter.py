"""When an exact actor's tokens are counted: from a sync to the first optimizer step, in forward passes of an update."""

import pytest
import torch

pytest.importorskip("verl", reason="the verl adapter needs verl")
pytest.importorskip("vllm", reason="an exact actor's products are vLLM's")

from tensordict import TensorDict
from verl.utils.metric import Metric

from ascend_quant.integrations.verl.training.exact.worker import Counter, Unequal, renamed

PROMPTS, ANSWERS, RANKS = (2, 3), (4, 1), 2


def nested(rows):
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def log_probs(shift=0.0):
    """Of whole sequences: each place has that of the token behind it; the answers' are -1, -2, .. in each row."""
    rows = [
        torch.cat([torch.full((prompt - 1,), 9.0), -torch.arange(1.0, answer + 1) + shift, torch.full((1,), 9.0)])
        for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)
    ]
    return nested(rows)


def micro_batch():
    fields = {
        "prompts": nested(torch.arange(1, 1 + prompt) for prompt in PROMPTS),
        "responses": nested(torch.arange(3, 3 + answer) for answer in ANSWERS),
        "rollout_log_probs": nested(-torch.arange(1.0, answer + 1) for answer in ANSWERS),
        "response_mask": nested(torch.ones(answer, dtype=torch.long) for answer in ANSWERS),
    }
    return TensorDict(fields, batch_size=2)


class Engine:
    """As much of a training engine of verl's as is counted in."""

    shift = 0.0

    def forward_step(self, micro_batch, loss_function, forward_only):
        return 0.0, {"model_output": {"log_probs": log_probs(self.shift)}, "metrics": {"actor/pg_loss": 1.0}}

    def optimizer_step(self):
        return 0.5

    def get_per_tensor_param(self, **_):
        return "weights", None

    def get_data_parallel_size(self):
        return RANKS


def step(engine, forward_only=False):
    """What a micro-batch adds to verl's metrics, as it sums them over ranks: means of sums."""
    _, output = engine.forward_step(micro_batch(), loss_function=None, forward_only=forward_only)
    assert output["metrics"].pop("actor/pg_loss") == 1.0
    return {name: Metric.aggregate_dp([value] * RANKS) for name, value in output["metrics"].items()}


def test_tokens_are_counted_while_both_have_the_same_weights():
    engine = Engine()
    Counter(engine)
    assert step(engine) == {}, "nothing has been synced"
    assert engine.get_per_tensor_param() == ("weights", None)
    equal = {"exact/tokens": RANKS * sum(ANSWERS), "exact/unequal": 0, "exact/max_diff": 0, "exact/k3_kl": 0}
    assert step(engine) == step(engine) == equal
    assert step(engine, forward_only=True) == {}
    assert engine.optimizer_step() == 0.5
    assert step(engine) == {}, "the next mini-batch is another policy's"
    engine.get_per_tensor_param()
    assert step(engine) == equal


def test_the_first_token_that_differs_is_kept_until_the_next_sync():
    engine = Engine()
    counter = Counter(engine)
    engine.get_per_tensor_param()
    engine.shift = 2.0**-20
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        found = [step(engine), step(engine)]
    finally:
        torch.distributed.destroy_process_group()
    expected = {"exact/tokens": RANKS * 5, "exact/unequal": RANKS * 5, "exact/max_diff": 2.0**-20}
    expected["exact/k3_kl"] = pytest.approx(2.0**-41, rel=1e-3, abs=0)  # a mean over ranks; of d, d**2 / 2
    assert found == [expected, expected]
    assert counter.first == Unequal([1, 2, 3, 4, 5, 6], PROMPTS[0], 0, -1.0, -1.0 + 2.0**-20, 0)
    engine.get_per_tensor_param()
    assert counter.first is None


def test_the_counts_have_their_own_names_in_a_steps_metrics():
    metrics = {"actor/exact/tokens": 5, "actor/exact/unequal": 0, "actor/exact/max_diff": 0.0, "actor/pg_loss": 1.0}
    renamed(metrics)
    assert metrics == {"exact/tokens": 5, "exact/unequal": 0, "exact/max_diff": 0.0, "actor/pg_loss": 1.0}
