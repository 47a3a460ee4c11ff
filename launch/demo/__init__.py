"""The demo: a tiny model learns to add with real verl GRPO, once with a BF16 and once with an INT8 rollout."""
