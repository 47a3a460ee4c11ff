"""verl integration: int8 rollouts in verl's GRPO/PPO; the refit of every step is checked and logged.

    python -m ascend_quant.integrations.verl.main_ppo actor_rollout_ref.rollout.quantization=ascend_quant ...

main_ppo.py     the entry point, with runner.py (task runner), settings.py (our settings) and trainer.py;
                main_one_step_off.py and main_fully_async.py are the entry points of asynchronous/
sending/        the trainer's side of a weight sync
receiving/      the engine's side of a weight sync
training/       changes to the actor's computation: attention, log-probabilities, QAT, the engine's own policy (exact/)
metrics/        metrics of syncs, replicas and the start
asynchronous/   verl's experimental trainers, one step off and fully asynchronous
hooks.py        monkeypatches: functions of verl that are replaced at run time, why, and how to switch each off
compat.py       differences between verl's versions
inputs.py       the model and the data files, looked for before verl starts Ray
validate.py     a whole configuration checked with verl's own checks, for `train --dry-run`
plugin.py       loaded by every `import verl`: the cpu platform (platform.py, cpu_settings.py) and hooks
agent_loops.py  agent loops that join the turns of a chat by the tokenizer's own tokens

Importing this package does not import torch, since the launcher reads these names.
"""

# Our options in `actor_rollout_ref.rollout.engine_kwargs.ascend_quant`; settings.py describes their values.
OPTIONS = ("proof", "qat", "send", "base_on", "memory", "strict")
EXACT = "int8_exact"  # value of `qat`, see training/exact/settings.py
EXACT_RANKS = (1, 2)  # engine ranks that such a run supports
