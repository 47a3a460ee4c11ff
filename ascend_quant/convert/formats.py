"""The tensors of a quantized layer, as each format of checkpoints has them.

compressed-tensors   weight, weight_scale; int4: weight_packed, weight_scale, weight_shape. As vLLM 0.28 reads them in
                     layers/quantization/compressed_tensors/schemes.
fp8                  weight, weight_scale_inv: DeepSeek's layout, as vLLM reads it in layers/quantization/fp8.py; with
                     one scale a tensor, weight_scale.
modelslim            weight, weight_scale, weight_offset, as vllm-ascend 0.23 reads them in
                     quantization/methods/w8a8_dynamic.py.

Which of them hold a scheme, and in what tensors, stands in its file in `schemes/`.
"""

from typing import NamedTuple

import torch

from ascend_quant.convert.errors import ConvertError
from ascend_quant.schemes import SCHEMES, Scheme, definition_of

FORMATS = ("compressed-tensors", "fp8", "modelslim")
PLAIN = "safetensors"  # of a checkpoint that is not quantized


class Spec(NamedTuple):
    """A tensor of a file: its dtype as safetensors calls it, and its shape."""

    dtype: str
    shape: tuple[int, ...]


def format_of(scheme: Scheme, name: str | None = None, experts: bool = False) -> str:
    """The format `name`, by default the first that holds `scheme`.

    Args:
        experts: whether there are experts to hold.

    Raises:
        UnregisteredScheme: a scheme that nobody registered.
        ConvertError: there is no format, or they do not go together; naming what does.
    """
    stored = definition_of(scheme).stored
    holding = [format for format in FORMATS if stored is not None and format in stored.formats]
    fitting = [format for format in holding if not (experts and format in stored.no_experts)]
    if name is not None and name not in FORMATS:
        raise ConvertError(f"unknown format {name!r}; this version writes: {', '.join(FORMATS)}")
    if not fitting:
        raise ConvertError(f"scheme {scheme.name} is no format of checkpoints; --scheme bf16 undoes a quantization")
    if name is not None and name not in fitting:
        with_experts = " with experts" if name in holding else ""
        held = f"format {name} holds {', '.join(held_by(name))}"
        raise ConvertError(f"scheme {scheme.name}{with_experts} is written as {' or '.join(fitting)}; {held}")
    return name or fitting[0]


def held_by(format: str) -> list[str]:
    """The names of the schemes that a format holds, in order."""
    stored = {name: definition_of(scheme).stored for name, scheme in SCHEMES.items()}
    return sorted(name for name, one in stored.items() if one is not None and format in one.formats)


def tensors(format: str, scheme: Scheme, name: str, shape: tuple[int, int]) -> dict[str, Spec]:
    """What `name` (ending in .weight) of shape (N, K) becomes: codes first, scales next, then what never changes."""
    found = definition_of(scheme).tensors(format, name, *shape)
    return {tensor: Spec(*spec) for tensor, spec in found.items()}


def unchanging(name: str, spec: Spec, shape: tuple[int, int]) -> torch.Tensor:
    """The third tensor of a layer: its shape (int4), or zeros (an offset of ModelSlim's)."""
    if name.endswith("_shape"):
        return torch.tensor(shape, dtype=torch.int64)
    return torch.zeros(spec.shape, dtype=torch.float32)
