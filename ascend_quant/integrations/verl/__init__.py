"""verl integration: int8 rollouts in verl's GRPO/PPO; the refit of every step is checked and logged.

    python -m ascend_quant.integrations.verl.main_ppo actor_rollout_ref.rollout.quantization=ascend_quant ...

main_ppo.py     the run's entry: runner.py is its task runner, settings.py what its configuration asks for, trainer.py
                the trainer; main_one_step_off.py and main_fully_async.py are the entries of asynchronous/
sending/        the trainer's side of a weight sync
receiving/      the engine's side of a weight sync
training/       what the actor computes otherwise: attention, log-probabilities, QAT, the engine's own policy (exact/)
metrics/        what each step logs of syncs, replicas and the start
asynchronous/   verl's experimental trainers, one step off and fully asynchronous
hooks.py        monkeypatches: everything of verl that is replaced at run time, why, and how to switch it off
compat.py       what differs between verl's versions
plugin.py       loaded by every `import verl`: the cpu platform (platform.py, cpu_settings.py), and the hooks that are
                put in place then
agent_loops.py  agent loops that know a chat's tokens

Importing this package does not import torch, since the launcher reads these names.
"""

# Our options in `actor_rollout_ref.rollout.engine_kwargs.ascend_quant`; settings.py describes their values.
OPTIONS = ("proof", "qat", "send", "base_on", "memory", "strict")
EXACT = "int8_exact"  # value of `qat`, see training/exact/settings.py
EXACT_RANKS = (1, 2)  # engine ranks that such a run supports
