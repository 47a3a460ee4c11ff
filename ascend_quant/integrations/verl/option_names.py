"""Our options of `actor_rollout_ref.rollout.engine_kwargs.ascend_quant` by name: no torch is imported for them.

What they mean, and their values, is in settings.py.
"""

OPTIONS = ("proof", "qat", "send", "base_on", "memory")
