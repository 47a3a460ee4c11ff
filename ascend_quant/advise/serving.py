"""Which kernels serve a scheme, and in what they differ from the plain roofline.

    bf16       vLLM's
    int8       this plugin's on NVIDIA GPUs; vllm-ascend's W8A8-dynamic classes on NPUs
    int8-vllm  vLLM's own W8A8 (compressed-tensors), NVIDIA GPUs alone
    fp8        vLLM's

Figures are of vLLM 0.23.0 on the H200, from the traces in benchmarks/results/2026-11-22-h200-x4-rollout.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ascend_quant.advise.devices import Device
from ascend_quant.advise.roofline import STREAM

# Bytes a logit of vLLM's sampler, temperature 1: to float32 2 + 4, temperature 4 + 4, softmax 4 + 4, noise 4,
# quotient 4 + 4 + 4, argmax 4. The draw in one pass leaves 306 of 669 us (7B, 256 rows).
SAMPLER, ONE_PASS = 42, 19


@dataclass(frozen=True)
class Serving:
    """The kernels of one column.

    Attributes:
        scheme: whose bytes and rate the products have.
        kernels: whose they are.
        fused: norms and activations write codes; else each product has a kernel in front that quantizes.
        sampling_bytes: of a logit.
        few, many: fraction of the bandwidth that experts' products reach in a decode step, up to as many tokens as
            experts and beyond.
        small_kernels: more a layer of experts, which sort, scale and add.
        measured: whether this project has measured these kernels, on an H200.
    """

    name: str
    scheme: str
    kernels: str
    fused: bool = False
    sampling_bytes: int = SAMPLER
    few: float = STREAM
    many: float = STREAM
    small_kernels: int = 0
    measured: bool = True


BF16 = Serving("bf16", "bf16", "vLLM's", small_kernels=1)
OURS = Serving("int8", "int8", "this plugin's", fused=True, sampling_bytes=ONE_PASS)
# Experts, 64 and 256 tokens, of 128 experts: 10165 and 15150 us for floors of 6695 and 6804. The step lies where vLLM
# takes other tiles by default, as it has tuned none for int8.
THEIRS = Serving("int8-vllm", "int8", "vLLM's own", few=0.66, many=0.45, small_kernels=1)
# 7685 and 7954 for 6680 and 6789; 1283 kernels a step of 48 layers, where int8-vllm has 995.
FP8 = Serving("fp8", "fp8", "vLLM's", few=0.87, many=0.85, small_kernels=7)


def servings(device: Device) -> Iterator[Serving]:
    """Those that the device has, BF16 first."""
    if device.npu:
        yield replace(BF16, kernels="vllm-ascend's", measured=False)
        yield Serving("int8", "int8", "vllm-ascend's W8A8-dynamic", measured=False)
    else:
        yield from (each for each in (BF16, OURS, THEIRS, FP8) if each.scheme in device.rates)
