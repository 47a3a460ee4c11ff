"""verl on two hosts: a trainer's rank and an INT8 replica on each; then one host loses power in mid-run.

The host is back a little later, and the run that was allowed one restart ends from its last checkpoint.
"""

import json
import re
import time
from pathlib import Path

import addition_start
import pytest

from cluster.launches import LONG, Launches
from cluster.leftovers import described

pytestmark = [LONG, pytest.mark.timeout(1200)]

STEPS, PROMPTS = 4, 8
REPORTED_SECONDS = 30  # the issue's
FIRST_STEP_SECONDS, REST_SECONDS = 480, 500
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    return sum(c in "02468" for c in solution_str) / max(1, len(solution_str))
"""  # an untrained model gets some of it, so that every step changes the weights
OVERRIDES = {
    "data.train_batch_size": PROMPTS,
    "actor_rollout_ref.actor.ppo_mini_batch_size": PROMPTS,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 16,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 16,
    "actor_rollout_ref.actor.optim.lr": 3e-3,
    "trainer.total_training_steps": STEPS,
    "trainer.save_freq": 1,
}


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """The recipe's data and model, the model without its warm-up; and another reward."""
    folder = addition_start.write(tmp_path / "data", STEPS * PROMPTS)
    (folder / "reward.py").write_text(REWARD)
    return folder.parent


def wait_for_checkpoint(out: Path, seconds: float) -> int:
    """The step of the first checkpoint that is whole."""
    marker, deadline = out / "checkpoints" / "latest_checkpointed_iteration.txt", time.monotonic() + seconds
    while not marker.exists() or not marker.read_text():
        assert time.monotonic() < deadline, f"no checkpoint within {seconds:.0f} s"
        time.sleep(0.1)
    return int(marker.read_text())


def steps_of(folder: Path) -> dict[int, dict]:
    """verl's own metrics, by step."""
    lines = [line for file in folder.rglob("*.jsonl") for line in file.read_text().splitlines()]
    return {line["step"]: line["data"] for line in map(json.loads, lines)}


def test_replicas_on_two_hosts_and_a_restart_after_one_has_died(hosts, launches: Launches, trained: Path):
    head, worker, _ = hosts
    reward = {"reward.custom_reward_function.path": trained / "addition" / "reward.py"}
    settings = [f"{name}={value}" for name, value in {**OVERRIDES, **reward}.items()]
    options = ["--set", "actor_rollout_ref.rollout.n=4", "--data", trained, "--restart", "1"]
    run = launches.train(head, "addition-int8", *options, "--", *settings)
    run.wait_for(r"step:1 ", FIRST_STEP_SECONDS)
    saved = wait_for_checkpoint(launches.out, 60)
    for host in (head, worker):
        names = [described(process) for process in host.processes() - host.residents]
        assert any("VLLM" in name for name in names), f"no engine on {host.name}: {names}"
    before, dead = len(run.text), time.monotonic()
    worker.kill()
    run.wait_for(rf"^{re.escape(worker.address)}: ", 2 * REPORTED_SECONDS, after=before)
    assert time.monotonic() - dead < REPORTED_SECONDS, run.text[-4000:]
    worker.restart()
    assert run.wait(REST_SECONDS) == 0, run.text[-9000:]
    metrics = sorted((launches.out).glob("metrics*"))
    assert len(metrics) == 2, metrics
    first, second = map(steps_of, metrics)
    assert min(first) == 1 and min(second) > saved and max(second) == STEPS
    for step in (*first.values(), *second.values()):
        assert step["refit/verified"] == addition_start.TENSORS
        assert min(step[f"refit/replica{rank}/milliseconds"] for rank in (0, 1)) > 0
    assert all(step["refit/changed"] > 0 for step in [*second.values()][1:])
