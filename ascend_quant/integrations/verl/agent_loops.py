"""verl's agent loops, with a way to join the turns of a chat for which the tokenizer has the tokens."""

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
    """verl's agent loop manager, with our workers; verl finds it by its name in the settings."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(ChatWorker)


def use_chats(config: Any) -> None:
    """Name our manager in verl's configuration, which is changed in place; a user's own is left as it is."""
    agent = config.actor_rollout_ref.rollout.agent
    if not agent.get("agent_loop_manager_class"):
        with open_dict(agent):
            agent.agent_loop_manager_class = f"{ChatManager.__module__}.{ChatManager.__qualname__}"
