"""verl's agent loops and their load balancer, whose processes start while models and engines are still loading.

verl creates them last, and step 1 waits until each of their processes has imported verl and torch, and, at the first
prompt, vLLM. Here the actors are created first, import all of it, and are given what they work with (`begin`) where
verl would create them.
"""

import asyncio
from typing import Any, ClassVar
from uuid import uuid4

import ray
from omegaconf import open_dict
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.workers.rollout.replica import get_rollout_replica_class
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from ascend_quant.integrations.verl import hooks
from ascend_quant.integrations.verl.compat import plain_class, type_for_turns
from ascend_quant.integrations.wrapping import install


class EarlyAgentLoopWorker(plain_class(AgentLoopWorkerTQ)):
    """verl's worker, made before there is anything to give it."""

    def __init__(self, rollout: str) -> None:
        """Only import what the first prompt needs.

        Args:
            rollout: the engine's name with verl.
        """
        get_rollout_replica_class(rollout)

    def begin(self, *arguments: Any) -> None:
        """verl's constructor."""
        super().__init__(*arguments)
        self.hf_model_type = type_for_turns(self.hf_model_type, self.tokenizer)


class EarlyAgentLoopManager(AgentLoopManagerTQ):
    """verl's manager, over the workers that `start` has made; verl finds it by its name in the settings."""

    started: ClassVar[list[Any]] = []

    @classmethod
    def start(cls, config: Any) -> None:
        """Create the workers, dealt to the nodes as verl deals them, and name this class in the settings.

        Args:
            config: verl's whole configuration, changed in place; one that names a manager of its own is left as it is.
        """
        agent = config.actor_rollout_ref.rollout.agent
        if agent.get("agent_loop_manager_class"):
            return
        with open_dict(agent):
            agent.agent_loop_manager_class = f"{cls.__module__}.{cls.__qualname__}"
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
        worker = ray.remote(EarlyAgentLoopWorker)
        cls.started = [
            worker.options(
                name=f"agent_loop_worker_{number}_{uuid4().hex[:8]}",
                scheduling_strategy=NodeAffinitySchedulingStrategy(nodes[number % len(nodes)], soft=True),
            ).remote(config.actor_rollout_ref.rollout.name)
            for number in range(agent.num_workers)
        ]

    async def _init_agent_loop_workers(self) -> None:
        given = self.config, self.llm_client, self.teacher_client, self.reward_loop_worker_handles
        self.agent_loop_workers = self.started
        await asyncio.gather(*(worker.begin.remote(*given) for worker in self.started))


class EarlyLoadBalancer(GlobalRequestLoadBalancer):
    """verl's load balancer, made before there are servers."""

    def __init__(self) -> None:
        pass

    def begin(self, *arguments: Any, **named: Any) -> None:
        """verl's constructor."""
        super().__init__(*arguments, **named)

    @classmethod
    def start(cls) -> None:
        """Create the actor, which serves the first who asks verl for a load balancer of its default kind."""
        made = [ray.remote(cls).remote()]

        def first(servers: dict[str, Any], full_determinism: bool) -> Any:
            if not made:
                return None
            ray.get(made[0].begin.remote(servers, full_determinism=full_determinism))
            return made.pop()

        hooks.EARLY.append(first)
        install(hooks.WITH_EARLY_ACTORS)
