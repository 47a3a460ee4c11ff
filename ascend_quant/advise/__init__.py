"""Will a quantized rollout pay? A roofline of one model, one device and one workload, in bf16, int8 and fp8.

devices.py     what a device can do: memory, bandwidth, rates
shapes.py      the sizes of a model, from its config.json
configs.py     where that config.json is
roofline.py    the time of one operator, and the constants of the estimate
steps.py       the operators of one decode or prefill step
rollouts.py    all steps of a batch: seconds, tokens/s, where the time goes
verdicts.py    what follows: speedups, the reason, how far a measured engine is from them
experts.py     what int8 experts reached on the H200, vLLM's and ours
assumptions.py what the estimate takes for granted, in sentences
"""


class AdviceError(ValueError):
    """A model, a device or a workload about which nothing can be said; says why, and what to change."""
