"""Where weights are quantized, tried before anything is written."""

from importlib import import_module

import torch

from ascend_quant import oracle
from ascend_quant.convert.errors import ConvertError
from ascend_quant.convert.quantizer import Quantizer
from ascend_quant.schemes import Scheme

MODULES = {"npu": "torch_npu"}  # what torch needs to know a device


def open_device(name: str) -> torch.device:
    """A device that this machine has.

    Raises:
        ConvertError: it has none of this kind, or torch does not know it.
    """
    try:
        if name in MODULES:
            import_module(MODULES[name])
        torch.zeros(1, device=name)
    except (ImportError, RuntimeError, AssertionError) as error:  # torch without CUDA raises the last
        raise ConvertError(f"no device {name!r} here ({first_line(error)}); --device cpu always works") from error
    return torch.device(name)


def check_device(device: torch.device, scheme: Scheme) -> None:
    """Quantize one small weight there and compare it with the oracle here: devices divide and round as they like.

    Raises:
        ConvertError: the device makes other codes, or cannot hold them.
    """
    generator = torch.Generator().manual_seed(0)
    w_NK = torch.randn(oracle.BLOCK, 4 * oracle.BLOCK, generator=generator).to(torch.bfloat16)
    codes_NK, scale = oracle.quantize(w_NK, scheme)
    chunks = []
    try:
        found = Quantizer(scheme, device).quantize(w_NK, lambda first, codes_RK: chunks.append(codes_RK))
    except RuntimeError as error:
        raise ConvertError(
            f"{device} cannot quantize to {scheme.name}: {first_line(error)}; use --device cpu"
        ) from error
    same_codes = torch.equal(torch.cat(chunks).view(torch.int8), codes_NK.view(torch.int8))
    if not (same_codes and torch.equal(found.reshape(-1), scale.reshape(-1))):
        raise ConvertError(f"{device} makes other codes of scheme {scheme.name} than a CPU; use --device cpu")


def first_line(error: Exception) -> str:
    """Of what an error says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
