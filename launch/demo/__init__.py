"""The demo: a small model learns to add with real verl GRPO, on a CPU or a GPU, once for each kind of rollout."""


class DemoError(RuntimeError):
    """A run that cannot go on; the message says what happened and what to do or where to read on."""
