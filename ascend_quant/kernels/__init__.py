"""Fast kernels for the functions of the reference implementation (oracle), with equal signatures on all devices.

Counters(device, sparing)                     statistics of a refit, updated by `write`
write(jobs, counters)                         quantizes or copies rows into resident rows, with statistics
digests(tensors)                              checksums of tensors' bytes; asynchronous
read_digests(found)                           the results of several calls of `digests`
prepare(device, writes)                       compiles the kernels for digests and writes; changes no tensor
SERVING                                       the GEMMs of each scheme that the device serves (registry.py)
storage(scheme, shape)                        the buffers that these read
matmul(x, codes, scale, bias)                 the W8A8 linear layer
experts(x, weight, expert, w13, .., w2, ..)   the W8A8 mixture of experts
plain_experts(x, weight, expert, w13, w2)     the same without quantization (cuda: see engine_products.py)
float32_product(x, weight)                    a language-model head with float32 logits
quantize_rows(w)                              int8 codes and scales of a weight's rows (cpu, cuda: for an exact trainer)
router_product(x, weight, any_number)         a router's logits (cuda only; elsewhere torch's own product)
fake_quantize(w, scheme)                      dequantize(quantize(w)) of int4 weights, for training
READS_ARE_FREE                                whether reading the counters needs no synchronization

cpu/, cuda/, npu/    refit (weights are quantized in place) and serve (products, attention) of each device
registry.py          GEMMs by device and scheme; storage.py has the buffers that these read
writes.py            the writes of a refit: source rows to resident rows; chunks.py carries them out in torch
counters.py          statistics of a refit
byte_digest.py       checksums as int8 matrix products; modulo.py has their arithmetic
int4_layouts.py      memory layouts of int4 codes: Marlin's tiles on CUDA, rows on CPUs
cache_pages.py       the layout of an int8 KV cache's pages
reciprocals.py       int8 quantization without a division
engine_products.py   products that an engine's integration registers: vLLM's cutlass, FlashAttention 3
exact_ops.py         norms, rotation and SiLU of exact engines and trainers, as torch custom ops
fallbacks.py         torch implementations for devices without a kernel
tuned.py             tuned tiles by GPU and shape, from files in tuned/
events.py            kernel times and asynchronous copies by device events
"""

from importlib import import_module
from types import ModuleType

import torch

from ascend_quant.kernels.registry import DuplicateKernels, NoKernels
from ascend_quant.kernels.storage import Serving
from ascend_quant.schemes import Scheme

__all__ = ["DuplicateKernels", "NoKernels", "kernels_for", "serving_of"]

_MODULES = {device: f"ascend_quant.kernels.{device}" for device in ("cpu", "cuda", "npu")}


def kernels_for(device: torch.device) -> ModuleType:
    """Return the kernel module of `device`.

    Raises:
        NoKernels: the device is not supported; the message names those that are.
    """
    if device.type not in _MODULES:
        raise NoKernels(f"device {str(device)!r} is not supported; supported: {', '.join(_MODULES)}")
    return import_module(_MODULES[device.type])


def serving_of(scheme: Scheme, device: torch.device) -> Serving:
    """Return the products (kernels) of a scheme's weights on `device`.

    Raises:
        UnregisteredScheme: the scheme is not registered.
        NoKernels: the scheme is not served there; the message names those that are.
    """
    return kernels_for(device).SERVING.of(scheme)
