"""The demo, `ascend-quant demo`: a small model learns to add with verl's GRPO on a CPU, once for each kind of rollout.

task.py       the task, its data, its tokenizer and its models
warmup.py     the model from which all arms start
reward.py     the reward, which verl loads
training.py   arms, and verl in a process of its own, as a user starts it
report.py     the whole demo, with its table, report.json and report.png

The smoke test trains the same model (ascend_quant/smoke/training.py).
"""


class DemoError(RuntimeError):
    """Raised if the demo cannot continue; the message says why, with the cause from verl's log."""
