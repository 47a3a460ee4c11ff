"""verl adapter: int8 rollouts in verl's GRPO/PPO, every step's refit checked and logged.

    python -m ascend_quant.integrations.verl.main_ppo actor_rollout_ref.rollout.quantization=ascend_quant ...

hooks.py      everything of verl that is replaced at run time: what, why, which versions, how to switch it off
compat.py     what differs between verl's versions
plugin.py     loaded by every `import verl`: the cpu platform (platform.py), and what hooks.py puts in place then
main_ppo.py   the run's entry, runner.py its task runner, settings.py what its configuration asks for
main_one_step_off.py, main_fully_async.py  entries of verl's experimental trainers: one_step_off.py and fully_async.py,
              experimental.py what they share
replica.py    the engine's server, trainer.py the trainer, both with the refits' receipts (sync_reports.py, receipts.py)
              and, of several replicas, the mismatch of each (replica_mismatch.py)
effective_sample.py  a warning where importance weights leave little of a batch
agent_loops.py  agent loops that know a chat's tokens; start_up.py where the time to step 1 goes
packed_attention.py  the trainer's attention without a mask, attention_settings.py whether a run can have it
log_probs.py  log-probabilities without a loop over rows
exact_worker.py  an actor that computes the engine's policy bit for bit, exact_settings.py what its run must be,
              exact_trainer.py what follows from tokens that differ, exact_probe.py which side is at fault
sender.py     the trainer's side of the weight sync: digests behind the weights; leaving.py as what they leave,
              patches.py what has changed for engines elsewhere, answers.py a receiver that was killed
worker.py     the engine's side, inside its workers; receiver.py its transport

Importing this package imports no torch: the launcher reads OPTIONS.
"""

# Ours of `actor_rollout_ref.rollout.engine_kwargs.ascend_quant`, by name; their values and meanings are in settings.py.
OPTIONS = ("proof", "qat", "send", "base_on", "memory", "strict")
