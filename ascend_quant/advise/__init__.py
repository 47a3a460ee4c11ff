"""Roofline estimate of the INT8 rollout speedup: one model on one engine, with BF16 and with INT8 weights.

model.py     sizes from a config.json, bytes of the weights and of the KV cache on one device, an engine's load
roofline.py  devices, on those that were measured the time of a decode step and of a rollout, and what follows from it
"""


class AdviceError(ValueError):
    """A model, a device or a workload that the estimate does not cover; the message says why and what to change."""
