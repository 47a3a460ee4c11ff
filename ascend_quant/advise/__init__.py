"""Will a quantized rollout pay? A roofline of one model, one device and one workload, in bf16, int8 and fp8.

configs.py     where a model's config.json is
fields.py      its values, checked
families.py    what they mean for each model_type
layers.py      attention, MLPs, experts: their matrices, their cache, a device's share
shapes.py      a decoder of such layers, and the bytes of its weights
devices.py     what a device can do: memory, bandwidth, rates
serving.py     which kernels serve a scheme, and what is known of them
caches.py      which caches a device can have
workloads.py   what an engine is asked for
roofline.py    the time of one operator, what it goes to, and the constants of the estimate
steps.py       what goes through a model at once (engines.py, mixers.py, feeds.py, operators.py: all operators of it)
memory.py      weights and cache on a device, sequences that fit
contexts.py    a decode step by the tokens that sequences hold, its floor, sequences that fit
rollouts.py    all steps of a batch: seconds, tokens/s, where the time goes
verdicts.py    what follows: speedups, the reason, how far a measured engine is from them
assumptions.py what the estimate takes for granted, in sentences
report.py      all of it, printed
"""


class AdviceError(ValueError):
    """A model, a device or a workload about which nothing can be said; says why, and what to change."""
