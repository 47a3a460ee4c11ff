"""The quantized layers of a checkpoint that is to be undone: compressed-tensors, block fp8, ModelSlim's int8.

Shape suffixes: N output channels, K input channels, G groups of a row.
"""

from collections.abc import Callable
from functools import partial

import torch

from ascend_quant.convert.errors import ConvertError
from ascend_quant.convert.source import quantization
from ascend_quant.oracle.quantize import NIBBLES
from ascend_quant.profile import fp8
from ascend_quant.profile.checkpoints import Checkpoint
from ascend_quant.profile.w8a8 import described_types, read_w8a8

METHODS = ("compressed-tensors", "fp8")
PACKED = "_packed"
INT4_BESIDE = ("_packed", "_scale", "_shape")
INT4_REFUSED = ("_zero_point", "_g_idx")
Reader = Callable[[], tuple[torch.Tensor, torch.Tensor]]


class Quantized:
    """What is quantized in a checkpoint.

    Attributes:
        readers: by the name of a weight (ending in .weight), what reads its codes (N, K) and scales, as
            `oracle.dequantize` takes them; int4 codes as `oracle.pack_int4` packs them.
        beside: tensors that belong to quantized weights and are none afterwards.

    Raises:
        ConvertError: nothing is quantized, or not in a way that can be undone.
        ProfileError: the same, of a format whose reader `profile` has too.
    """

    def __init__(self, checkpoint: Checkpoint):
        if quantization(checkpoint) is None:
            raise ConvertError(f"{checkpoint.folder} is not quantized: there is nothing to undo")
        self.checkpoint, self.readers, self.beside = checkpoint, {}, set()
        method = (checkpoint.config.get("quantization_config") or {}).get("quant_method", METHODS[0])
        if described_types(checkpoint) is None and method not in METHODS:
            undone = "compressed-tensors (int8, fp8, int4), fp8 and ModelSlim's W8A8 can be undone"
            raise ConvertError(f"{checkpoint.folder} is quantized by {method!r}; {undone}")
        self._find_int8()
        self._find_fp8()
        self._find_int4()
        if not self.readers:
            raise ConvertError(
                f"{checkpoint.folder} says that it is quantized, but no weight in it is int8, fp8 or int4"
            )

    def _find_int8(self) -> None:
        if not any(name.endswith(".weight") and self.checkpoint.dtype(name) == "I8" for name in self.checkpoint.names):
            return
        found = read_w8a8(self.checkpoint)
        if lost := [name for name in self.checkpoint.names if name.endswith(".quant_bias")]:
            raise ConvertError(
                f"{lost[0]}: a layer with static activations holds its bias in int32; that is not undone"
            )
        self.readers |= {name: partial(found.codes_and_scale, name) for name in found.quantized}
        self.beside |= set(self.checkpoint.names) - found.plain - found.quantized

    def _find_fp8(self) -> None:
        for name in self.checkpoint.names:
            if self.checkpoint.dtype(name) == fp8.FP8 and name.endswith(".weight"):
                self.readers[name] = partial(fp8.codes_and_scale, self.checkpoint, name)
                self.beside |= {f"{name.removesuffix('weight')}{leaf}" for leaf in fp8.BESIDE_WEIGHT}

    def _find_int4(self) -> None:
        for packed in self.checkpoint.names:
            if packed.endswith(f".weight{PACKED}"):
                name = packed.removesuffix(PACKED)
                self.readers[name] = partial(packed_and_scale, self.checkpoint, name)
                self.beside |= {f"{name}{leaf}" for leaf in INT4_BESIDE}

    def shape(self, name: str) -> tuple[int, int]:
        """(N, K) of a quantized weight."""
        if name in self.checkpoint:
            return self.checkpoint.shape(name)
        return tuple(self.checkpoint.tensor(f"{name}_shape").tolist())

    def stored_as(self, name: str) -> str:
        """The tensor that holds the codes of a quantized weight."""
        return name if name in self.checkpoint else f"{name}{PACKED}"


def packed_and_scale(checkpoint: Checkpoint, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """int4 codes, packed (N, K / 8), and scales (N, G) of a weight.

    Raises:
        ConvertError: it is not symmetric, has columns in another order, or is not what its shape says.
    """
    for leaf in INT4_REFUSED:
        if f"{name}{leaf}" in checkpoint:
            raise ConvertError(f"{name}{leaf}: only symmetric groups of neighbours can be undone")
    packed, scale = checkpoint.tensor(f"{name}{PACKED}"), checkpoint.tensor(f"{name}_scale")
    rows, columns = checkpoint.tensor(f"{name}_shape").tolist()
    fits = scale.dim() == 2 and scale.shape[0] == rows and columns % max(1, scale.shape[1]) == 0
    if packed.dtype != torch.int32 or packed.shape != (rows, columns // NIBBLES) or not fits:
        found = f"{packed.dtype} {tuple(packed.shape)} with scales {tuple(scale.shape)}"
        raise ConvertError(f"{name}: {found} is no int4 weight of shape ({rows}, {columns})")
    return packed, scale
