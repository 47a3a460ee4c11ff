"""What the estimate takes for granted, in sentences, with the figures that it used."""

from ascend_quant.advise import steps
from ascend_quant.advise.devices import GIB, Device
from ascend_quant.advise.rollouts import MEMORY_USED, PREFILL_ROWS, Workload
from ascend_quant.advise.roofline import KERNEL_SECONDS, LINK_EFFICIENCY, STEP_SECONDS
from ascend_quant.advise.shapes import Shape


def assumptions(shape: Shape, device: Device, workload: Workload, efficiency: float) -> list[str]:
    """A sentence each."""
    rates = ", ".join(f"{scheme} {rate / 1e12:.0f} T/s" for scheme, rate in device.rates.items())
    lines = [
        f"Device: {device.about}; {device.bandwidth / 1e12:.2f} TB/s, {rates}, {device.memory / GIB:.0f} GiB "
        f"({device.source}).",
        f"An operator takes the larger of bytes / ({efficiency:.2f} of that bandwidth) and operations / rate, plus "
        f"{KERNEL_SECONDS * 1e6:.1f} us a kernel; a step adds {STEP_SECONDS * 1e3:.1f} ms of host work; kernels run "
        "one after the other, from a captured graph.",
        "BF16 in every scheme: embedding, lm head, routers, norms, KV cache, attention. In front of each quantized "
        "product a kernel quantizes its activations, with a scale per token; weights have a float32 scale per row.",
        f"{workload.batch} sequences start together, all have {workload.inputs} + {workload.outputs} tokens, and are "
        f"decoded at their mean context of {workload.inputs + workload.outputs / 2:.0f} tokens; no shared prefixes, no "
        f"speculation. Prompts go first, {PREFILL_ROWS} tokens a step. Sampling at temperature 1, "
        f"{steps.SAMPLING_BYTES} bytes a logit.",
        f"{MEMORY_USED:.0%} of the memory holds weights and KV cache; sequences that do not fit wait for a place.",
    ]
    if workload.tp > 1:
        lines.append(
            f"{workload.tp} devices: two ring all-reduces a layer, {device.all_reduce_seconds * 1e6:.0f} us each plus "
            f"the bytes at {LINK_EFFICIENCY:.0%} of {device.link / 1e9:.0f} GB/s; nothing overlaps them."
        )
    if shape.expert_layers:
        reached = steps.distinct_experts(shape.experts, shape.top_k, workload.batch)
        lines.append(
            f"Tokens choose their {shape.top_k} of {shape.experts} experts at random: {workload.batch} tokens in a "
            f"step reach {reached:.1f}, with {workload.batch * shape.top_k / reached:.1f} rows each. Experts are split "
            "among the devices like MLPs (no expert parallelism)."
        )
    return lines
