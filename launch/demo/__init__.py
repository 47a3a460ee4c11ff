"""The demo: a small model learns to add with verl's GRPO, on a CPU or a GPU, once for each kind of rollout."""
