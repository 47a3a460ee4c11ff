"""Fast kernels for the functions of the reference implementation (oracle), with equal signatures on all devices.

Counters(device, sparing)                     what `write` counts
write(jobs, counters)                         writes of a refit: rows quantized or copied into resident rows, counted
digests(tensors)                              fingerprints of tensors' bytes, unread; asynchronous
read_digests(found)                           the numbers that several calls of `digests` gave, all at once
prepare(device, writes)                       what digests and writes of a kind need is compiled; changes no tensor
SERVING                                       the products of each scheme that the device serves (registry.py)
storage(scheme, shape)                        the buffers that these compute with
matmul(x, codes, scale, bias)                 the W8A8 linear layer
experts(x, weight, expert, w13, .., w2, ..)   the W8A8 mixture of experts
plain_experts(x, weight, expert, w13, w2)     the same without quantization (cuda: see engine_products.py)
float32_product(x, weight)                    a language-model head with float32 logits
quantize_rows(w)                              int8 codes and scales of a weight's rows (cpu, cuda: for an exact trainer)
router_product(x, weight, any_number)         a router's logits (cuda alone; elsewhere torch's own product)
fake_quantize(w, scheme, absmax)              what the engine's weights stand for, for training
READS_ARE_FREE                                whether a look at the counters costs no waiting

cpu/, cuda/, npu/    refit (weights are quantized in place) and serve (products, attention) of each device
registry.py          which device has products for which scheme; storage.py has the buffers that these compute with
writes.py            what a refit asks for: rows of a source to rows of a resident tensor; chunks.py does so with torch
counters.py          what is counted meanwhile
byte_digest.py       fingerprints of bytes as int8 matrix products; modulo.py has their arithmetic
int4_layouts.py      where int4 codes lie: Marlin's tiles on CUDA, rows on CPUs
cache_pages.py       the layout of an int8 KV cache's pages
reciprocals.py       codes of a row without a division
engine_products.py   products that an engine's adapter brings: vLLM's cutlass, FlashAttention 3
exact_ops.py         norms, rotation and SiLU of exact engines and trainers, as ops of torch
fallbacks.py         by torch, where a device has no kernel of its own
tuned.py             the fastest tiles of a GPU for a shape, from files in tuned/ (tuned_reader.py)
events.py            times on a GPU's own clock
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
    """The kernel module of `device`.

    Raises:
        NoKernels: naming the devices that this version serves.
    """
    if device.type not in _MODULES:
        raise NoKernels(f"device {str(device)!r} is not supported; supported: {', '.join(_MODULES)}")
    return import_module(_MODULES[device.type])


def serving_of(scheme: Scheme, device: torch.device) -> Serving:
    """Return the products (kernels) that serve a scheme's weights on `device`.

    Raises:
        UnregisteredScheme: a scheme that nobody registered.
        NoKernels: naming the schemes that are served there.
    """
    return kernels_for(device).SERVING.of(scheme)
