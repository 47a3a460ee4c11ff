"""The wire format of the trainer's weights: their own dtype, rounded to BF16, or pre-quantized for the engines.

verl 0.9.1's FSDP engines return the optimizer's float32 weights: 30 GB for a 7B model, whose embedding (2,079 MiB)
exceeds verl's bucket of 2,048 MiB. Without IPC, an assertion then ends the run. A refit rounds to BF16 before it
quantizes, and embeddings and heads are BF16 in the engine, so sending BF16 gives the same result.

An engine keeps some parameters in float32: routers and their correction biases, decay rates, scales of norms. These are
few and small, so parameters that may not be rounded are sent unchanged: vectors, routers, parameters without `.weight`
in their name, and those that the trainer's model keeps in float32 (transformers' `_keep_in_fp32_modules`).

With `send: int8`, parameters that every engine quantizes row by row are sent pre-quantized (transfer/prequantized.py).
The engines report these after the first sync; until then, and for all other parameters, weights are sent as floats.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ascend_quant.schemes import Scheme
from ascend_quant.schemes.layer_names import HEADS, ROUTERS, keeps_its_dtype
from ascend_quant.schemes.tensors import one_by_one
from ascend_quant.transfer.prequantized import coded, codes_dtype, sent_name
from ascend_quant.transfer.validate import NamedTensor, check_sent

ENGINE_DTYPE = "bfloat16"  # the supported value of verl's rollout.dtype; with others, nothing is rounded
KEPT_BY_MODEL = ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")


@dataclass(frozen=True)
class WireFormat:
    """The wire format of a trainer's weights: dtypes, and which parameters are pre-quantized.

    Attributes:
        rounds: whether weights that a BF16 engine rounds are sent in BF16.
        kept: components of names (between dots) whose parameters are never rounded.
        scheme, coded: scheme and names of the pre-quantized parameters; no parameter is pre-quantized if the scheme is
            None.
    """

    rounds: bool = False
    kept: Sequence[str] = ()
    scheme: Scheme | None = None
    coded: Collection[str] = frozenset()

    def dtype_or_scheme(self, name: str, tensor: torch.Tensor) -> torch.dtype | Scheme:
        """Return the dtype in which a parameter is sent, or the scheme if it is pre-quantized.

        Args:
            tensor: only its dtype and shape are used.
        """
        if self.scheme is not None and tensor.is_floating_point() and self._is_coded(name, tensor.shape):
            return self.scheme
        return torch.bfloat16 if self.rounds and is_rounded(name, tensor, self.kept) else tensor.dtype

    def as_codes(self, params: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the names of the pre-quantized parameters."""
        return {name: param for name, param in params.items() if isinstance(self.dtype_or_scheme(name, param), Scheme)}

    def each(self, weights: Iterable[NamedTensor]) -> Iterator[list[NamedTensor]]:
        """Yield whole weights in their wire format, one by one; a converted one is a new tensor on the same device.

        Raises:
            RefitError: see `validate.check_sent`.
        """
        for name, tensor in weights:
            check_sent(name, tensor)
            left = self.dtype_or_scheme(name, tensor)
            if isinstance(left, torch.dtype):
                yield [(name, tensor.to(left))]
            else:
                yield coded([(name, tensor)], left)

    def named(self, weights: Iterable[NamedTensor]) -> list[NamedTensor]:
        """Return weights under their sent names; those of pre-quantized tensors include the scheme."""
        if self.scheme is None:
            return [*weights]
        dtype = codes_dtype(self.scheme)
        return [(sent_name(name, self.scheme) if w.dtype == dtype else name, w) for name, w in weights]

    def _is_coded(self, name: str, shape: torch.Size) -> bool:
        """Return whether a parameter is pre-quantized, by its name or (stacked experts) the first expert's."""
        if len(shape) < 3:
            return name in self.coded
        first = torch.empty((1, *shape[1:]), device="meta")
        return name in self.coded or all(part in self.coded for part, _ in one_by_one(name, first))


def is_rounded(name: str, tensor: torch.Tensor, kept: Iterable[str] = ()) -> bool:
    """Return whether a float32 matrix, or a layer's stacked experts, is quantized or held in BF16 by a BF16 engine.

    Args:
        kept: see `WireFormat`.
    """
    layer, _, leaf = name.rpartition(".")
    if tensor.dtype != torch.float32 or any(_is_part(part, name) for part in kept):
        return False
    if tensor.dim() == 3:
        return layer.endswith("experts")
    return leaf == "weight" and tensor.dim() == 2 and not _keeps_float32(layer)


def kept_by(module: Any) -> list[str]:
    """List the name parts that a trainer's model keeps in float32; empty for models without such a list (Megatron)."""
    return [part for attribute in KEPT_BY_MODEL for part in getattr(module, attribute, None) or ()]


def _keeps_float32(layer: str) -> bool:
    *_, owner, last = ("", *layer.split("."))
    return owner in ROUTERS or (keeps_its_dtype(layer) and last not in HEADS)


def _is_part(part: str, name: str) -> bool:
    return re.search(rf"(^|\.){re.escape(part)}($|\.)", name) is not None
