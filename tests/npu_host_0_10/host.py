"""tests/npu_host with torch 2.7.1 and torch_npu 2.7.1, which it was not written for."""

import torch
from npu_host import absent, device, reference

from npu_host_0_10 import routing  # noqa: F401  registers the references

CAST = "npu::_npu_dtype_cast"  # what `tensor.to(dtype)` calls in torch_npu 2.7.1


def install() -> None:
    """Once a process, before vllm-ascend is imported: npu:0 on host memory."""
    torch.library.Library.impl = _take_override(torch.library.Library.impl)
    reference.reference(CAST)(lambda a: a.input.to(a.dtype))
    device.install()
    torch.npu.config.allow_internal_format = True  # as vllm-ascend's worker does
    absent.stand_in("torchair.scope")  # vllm-ascend 0.10 imports some of its names always; it is linked to CANN's


def _take_override(impl):
    """torch 2.7.1 replaces kernels without being asked to, and does not know the argument that asks for it."""

    def accepting(self, name, kernel, dispatch_key="", *, with_keyset=False, allow_override=False):
        return impl(self, name, kernel, dispatch_key, with_keyset=with_keyset)

    return accepting
