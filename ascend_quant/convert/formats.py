"""The tensors of a quantized layer, as each format of checkpoints has them.

compressed-tensors   weight, weight_scale; int4: weight_packed, weight_scale, weight_shape. As vLLM 0.28 reads them in
                     layers/quantization/compressed_tensors/schemes.
fp8                  weight, weight_scale_inv: DeepSeek's layout, as vLLM reads it in layers/quantization/fp8.py; with
                     one scale a tensor, weight_scale.
modelslim            weight, weight_scale, weight_offset, as vllm-ascend 0.23 reads them in
                     quantization/methods/w8a8_dynamic.py.

Shape suffixes: N output channels, K input channels, I and J blocks along them, G groups of a row.
"""

from typing import NamedTuple

import torch

from ascend_quant import oracle
from ascend_quant.convert.errors import ConvertError
from ascend_quant.oracle.quantize import NIBBLES
from ascend_quant.schemes import Scheme

FORMATS = {
    "compressed-tensors": ("int8", "fp8", "fp8_tensor", "int4_g128", "int4_g32"),
    "fp8": ("fp8_block", "fp8_tensor"),
    "modelslim": ("int8",),
}
WITHOUT_EXPERTS = {("compressed-tensors", "fp8_tensor")}  # vLLM 0.28 takes these experts with static activations alone
PLAIN = "safetensors"  # of a checkpoint that is not quantized
CODES = {"int8": "I8", "fp8": "F8_E4M3"}


class Spec(NamedTuple):
    """A tensor of a file: its dtype as safetensors calls it, and its shape."""

    dtype: str
    shape: tuple[int, ...]


def format_of(scheme: Scheme, name: str | None = None, experts: bool = False) -> str:
    """The format `name`, by default the first that holds `scheme`.

    Args:
        experts: whether there are experts to hold.

    Raises:
        ConvertError: there is none, or they do not go together; naming what does.
    """
    holding = [format for format, schemes in FORMATS.items() if scheme.name in schemes]
    fitting = [format for format in holding if not (experts and (format, scheme.name) in WITHOUT_EXPERTS)]
    if name is not None and name not in FORMATS:
        raise ConvertError(f"unknown format {name!r}; this version writes: {', '.join(FORMATS)}")
    if not fitting:
        raise ConvertError(f"scheme {scheme.name} is no format of checkpoints; --to bf16 undoes a quantization")
    if name is not None and name not in fitting:
        with_experts = " with experts" if name in holding else ""
        held = f"format {name} holds {', '.join(FORMATS[name])}"
        raise ConvertError(f"scheme {scheme.name}{with_experts} is written as {' or '.join(fitting)}; {held}")
    return name or fitting[0]


def tensors(format: str, scheme: Scheme, name: str, shape: tuple[int, int]) -> dict[str, Spec]:
    """What `name` (ending in .weight) of shape (N, K) becomes: codes first, scales next, then what never changes."""
    rows, columns = shape
    if scheme.codes == "int4":
        return {
            f"{name}_packed": Spec("I32", (rows, columns // NIBBLES)),
            f"{name}_scale": Spec("BF16", (rows, columns // scheme.group)),
            f"{name}_shape": Spec("I64", (2,)),
        }
    codes = {name: Spec(CODES[scheme.codes], shape)}
    if scheme.shares == "block":
        blocks = (-(-rows // oracle.BLOCK), -(-columns // oracle.BLOCK))
        return codes | {f"{name}_scale_inv": Spec("F32", blocks)}
    scale = {f"{name}_scale": Spec("F32", (1,) if scheme.shares == "tensor" else (rows, 1))}
    offset = {f"{name.removesuffix('weight')}weight_offset": Spec("F32", (rows, 1))} if format == "modelslim" else {}
    return codes | scale | offset


def unchanging(name: str, spec: Spec, shape: tuple[int, int]) -> torch.Tensor:
    """The third tensor of a layer: its shape (int4), or zeros (an offset of ModelSlim's)."""
    if name.endswith("_shape"):
        return torch.tensor(shape, dtype=torch.int64)
    return torch.zeros(spec.shape, dtype=torch.float32)
