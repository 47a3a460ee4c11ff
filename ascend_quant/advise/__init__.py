"""Roofline estimate of the INT8 rollout speedup: one model on one engine, with BF16 and with INT8 weights.

model.py     sizes from a config.json, size of weights and KV cache, an engine's load
roofline.py  devices, and the estimated time of a decode step and of a rollout
"""


class AdviceError(ValueError):
    """Raised for a model, device or workload that the estimate does not cover; the message says what to change."""
