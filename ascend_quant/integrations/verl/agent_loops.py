"""verl's agent loops, which join the turns of a chat only by tokens that the tokenizer has."""

from typing import Any

import ray
from omegaconf import open_dict
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, AgentLoopWorkerTQ

from ascend_quant.integrations.verl.compat import plain_class, type_for_turns


class ChatWorker(plain_class(AgentLoopWorkerTQ)):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.hf_model_type = type_for_turns(self.hf_model_type, self.tokenizer)


class ChatManager(AgentLoopManagerTQ):
    """verl's agent loop manager with our workers; verl finds it by the name in its configuration."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(ChatWorker)


def use_chats(config: Any) -> None:
    """Set our manager in verl's configuration, in place; one that the user has set is kept."""
    agent = config.actor_rollout_ref.rollout.agent
    if not agent.get("agent_loop_manager_class"):
        with open_dict(agent):
            agent.agent_loop_manager_class = f"{ChatManager.__module__}.{ChatManager.__qualname__}"
