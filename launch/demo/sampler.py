"""verl's buffer of finished answers, asked more often. verl loads this file by its path, in its own process.

verl looks every 2 s, which is nothing in a step of minutes and much in the demo's, whose answers take 2 s on a GPU.
"""

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

POLL_SECONDS = 0.1


class QuickReplayBuffer(ReplayBuffer):
    """What `trainer.v1.sampler.custom_sampler` names."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, poll_interval=POLL_SECONDS, **kwargs)
