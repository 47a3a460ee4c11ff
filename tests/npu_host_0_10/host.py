"""tests/npu_host with torch 2.7.1 and torch_npu 2.7.1, which it was not written for."""

import sys
from types import ModuleType

import torch
from npu_host import device, reference

from npu_host_0_10 import routing  # noqa: F401  registers the references

CAST = "npu::_npu_dtype_cast"  # what `tensor.to(dtype)` calls in torch_npu 2.7.1


def install() -> None:
    """Once a process, before vllm-ascend is imported: npu:0 on host memory."""
    torch.library.Library.impl = _take_override(torch.library.Library.impl)
    known = set(torch._C._dispatch_get_all_op_names())
    for name in reference.REFERENCES.keys() - known:
        del reference.REFERENCES[name]
    reference.reference(CAST)(lambda a: a.input.to(a.dtype))
    device.install()
    torch.npu.config.allow_internal_format = True  # as vllm-ascend's worker does
    _hide_torchair()


def _take_override(impl):
    """torch 2.7.1 replaces kernels without being asked to, and does not know the argument that asks for it."""

    def accepting(self, name, kernel, dispatch_key="", *, with_keyset=False, allow_override=False):
        return impl(self, name, kernel, dispatch_key, with_keyset=with_keyset)

    return accepting


def _hide_torchair() -> None:
    """vllm-ascend 0.10 imports some of its names always; it is linked to CANN's graph compiler."""

    def refuse(*args, **kwargs):
        raise NotImplementedError("torchair does not run on host memory")

    torchair, scope = ModuleType("torchair"), ModuleType("torchair.scope")
    torchair.patch_for_hcom = scope.npu_stream_switch = scope.npu_wait_tensor = refuse
    sys.modules.update({"torchair": torchair, "torchair.scope": scope})
