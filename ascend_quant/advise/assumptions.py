"""What the estimate takes for granted, in sentences, with the figures that it used."""

from collections.abc import Iterator

from ascend_quant.advise.caches import CACHES, no_quantized_cache
from ascend_quant.advise.devices import GIB, Device
from ascend_quant.advise.feeds import distinct_experts
from ascend_quant.advise.layers import Attention, Latent, Linear
from ascend_quant.advise.rollouts import PREFILL_ROWS
from ascend_quant.advise.roofline import (
    CACHE,
    KERNEL_SECONDS,
    LINK_EFFICIENCY,
    PIPELINE_SECONDS,
    SAMPLING,
    STEP_SECONDS,
    STREAM,
)
from ascend_quant.advise.serving import servings
from ascend_quant.advise.shapes import Shape
from ascend_quant.advise.workloads import Workload


def assumptions(shape: Shape, device: Device, workload: Workload) -> list[str]:
    """A sentence or two each."""
    rates = ", ".join(f"{scheme} {rate / 1e12:.0f} T/s" for scheme, rate in device.rates.items())
    kernels = "; ".join(f"{serving.name} by {serving.kernels} kernels" for serving in servings(device))
    small, large = (seconds * 1e6 for seconds in (KERNEL_SECONDS, KERNEL_SECONDS + PIPELINE_SECONDS))
    lines = [
        f"Device: {device.about}; {device.bandwidth / 1e12:.2f} TB/s, {rates}, {device.memory / GIB:.0f} GiB "
        f"({device.source}).",
        f"An operator takes the larger of bytes / bandwidth and operations / rate, plus {small:.1f} us a kernel, "
        f"{large:.1f} if it multiplies; of the bandwidth products reach {STREAM}, attention {CACHE}, sampling "
        f"{SAMPLING}; a step adds {STEP_SECONDS * 1e3:.2f} ms of host work; kernels run one after the other. The "
        "constants are those of an H200's traces.",
        f"Served: {kernels}.",
        "BF16 in every scheme: embedding, lm head, routers, norms, convolutions, attention. Quantized weights have a "
        "float32 scale per row, activations a scale per token.",
        f"{workload.batch} sequences start together, all have {workload.inputs} + {workload.outputs} tokens, and are "
        f"decoded at their mean context of {workload.inputs + workload.outputs / 2:.0f} tokens; no shared prefixes, no "
        f"speculation. Prompts go first, {PREFILL_ROWS} tokens a step. Sampling at temperature 1.",
        f"{workload.memory:.0%} of the memory holds weights and KV cache (--memory; what activations and graphs take "
        "of it is left out); sequences that do not fit wait for a place.",
    ]
    return [*lines, *_graphs(workload), *_caches(shape, device), *_layers(shape), *_devices(shape, device, workload)]


def _graphs(workload: Workload) -> Iterator[str]:
    if not workload.eager:
        yield "Decode steps are started as captured graphs."
    elif workload.launch is None:
        yield "No graphs, and no --launch-us: times are the device's alone, the least that a step can take."
    else:
        yield (
            f"No graphs: the host starts a kernel in {workload.launch * 1e6:g} us, as you measured it; a step takes as "
            "long as the device or the host, whichever is slower. Kernels are counted as vLLM fuses them under "
            "torch.compile; without it there are more."
        )


def _caches(shape: Shape, device: Device) -> Iterator[str]:
    served = [name for name in list(CACHES)[1:] if name not in no_quantized_cache(device, shape)]
    about = {"int8": "int8 has a float32 scale a token and head", "fp8": "fp8 scales of a whole layer"}
    if served:
        yield (
            f"Quantized caches ({'; '.join(about[name] for name in served)}) are read at the same part of the "
            "bandwidth as BF16's, which no kernel was seen to reach yet; what they do to the policy, `ascend-quant "
            "mismatch --kv-cache` says."
        )


def _layers(shape: Shape) -> Iterator[str]:
    mixers = [layer.mixer for layer in shape.layers]
    if windows := sorted({mixer.window for mixer in mixers if isinstance(mixer, Attention) and mixer.window}):
        seen = ", ".join(map(str, windows))
        yield f"Layers with a window of {seen} tokens keep no more than these (vLLM's hybrid cache manager)."
    if any(isinstance(mixer, Latent) for mixer in mixers):
        yield (
            "Latent attention: every device keeps the latents of all its sequences whole, whatever --tp; decoding "
            "multiplies queries and outputs with kv_b in BF16, which a quantized engine holds besides."
        )
    if any(isinstance(mixer, Linear) for mixer in mixers):
        yield "Linear attention keeps a state of one size a sequence, which each token reads and writes."
    if shape.left_out:
        yield f"Left out, in time and in memory: {', '.join(shape.left_out)}."


def _devices(shape: Shape, device: Device, workload: Workload) -> Iterator[str]:
    devices = workload.tp * workload.dp
    if devices > 1:
        yield (
            f"{devices} devices: two collectives a layer over a ring, {device.all_reduce_seconds * 1e6:.0f} us each "
            f"plus the bytes at {LINK_EFFICIENCY:.0%} of {device.link / 1e9:.0f} GB/s; nothing overlaps them."
        )
    if (experts := shape.experts) is not None:
        reached = distinct_experts(experts.experts, experts.top_k, workload.batch)
        split = "each device has whole experts, all alike busy" if workload.expert_parallel else "devices split each"
        yield (
            f"Tokens choose their {experts.top_k} of {experts.experts} experts at random: {workload.batch} tokens in a "
            f"step reach {reached:.1f}, with {workload.batch * experts.top_k / reached:.1f} rows each; {split}."
        )
