"""Python processes for verl's agent loops, started while the models and the engines still load.

verl creates its agent loops last, and step 1 waits until their processes have imported verl, torch and vLLM. Ray keeps
a process whose task is done for the next one of the same job (as many as the host has CPUs), so tasks that import the
same modules early leave processes that are ready by then.
"""

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote(max_retries=0)
def import_agent_loop() -> None:
    """What an agent loop's process imports first."""
    import verl.trainer.ppo.v1.agent_loop_tq  # noqa: F401


def start_early(config: Any) -> None:
    """Start as many processes as verl will want, spread over the nodes as verl does; nobody waits for them.

    Args:
        config: verl's whole configuration.
    """
    wanted = config.actor_rollout_ref.rollout.agent.num_workers + config.reward.num_workers
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
    for number in range(wanted):
        place = NodeAffinitySchedulingStrategy(nodes[number % len(nodes)], soft=True)
        import_agent_loop.options(scheduling_strategy=place).remote()
