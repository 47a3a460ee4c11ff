"""Upper bounds of q, k and v of a layer, computed from its weights: for KV cache scales before a trainer has sent any.

The input of q_proj, k_proj and v_proj is x g, where RMSNorm makes sum(x^2) at most H, its length, and g is the norm's
weight. So a row w gives at most sqrt(H) |w g| + |bias| (Cauchy and Schwarz), and every row of a matrix is, element by
element, at most the matrix's column maxima c: sqrt(H) |c g| + |bias| holds for all rows, and c is all that has to be
kept of a matrix until the norm has come. A norm of q or k by heads leaves at most sqrt(D) max|g|. Rotating pairs of
elements adds at most sqrt(2), behind such a norm nothing.

A bound is some ten to some hundred times what is seen. For fp8 that costs little: e4m3 is a floating type, whose
relative error is the same from 448 down to 2^-6, while a scale that is too small cuts off. Rounding weights and
activations to int8 is not in it; what it adds is far less than the column maxima give away.
"""

import re
from math import sqrt

import torch

NORM_BEFORE_ATTENTION = (
    "llama",
    "mistral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
)  # model_type; RMSNorm, as above
PARTS = re.compile(
    r"(?:^|\.)(layers\.\d+)\.(input_layernorm\.weight|self_attn\.(?:[qkv]_proj\.(?:weight|bias)|[qk]_norm\.weight))$"
)


class Bounds:
    """Bounds of q, k and v from the tensors of a refit, in any order; one row is kept of each.

    Args:
        gain: maximum gain of the rotary embedding (above 1 for yarn).
    """

    def __init__(self, gain: float = 1.0):
        self._gain = gain
        self._seen: dict[str, torch.Tensor] = {}

    def begin(self) -> None:
        self._seen = {}

    def take(self, name: str, tensor: torch.Tensor) -> None:
        """Add a tensor that a bound needs, asynchronously like a kernel that reads it; other tensors are ignored."""
        found = PARTS.search(name)
        if found is None or tensor.dim() > 2 or not tensor.numel():
            return
        kept = tensor.detach()
        if kept.dim() == 2:
            lowest, highest = torch.aminmax(kept, dim=0)
            kept = torch.maximum(highest, -lowest)
        self._seen[f"{found[1]}.{found[2]}"] = kept.to(torch.float32, copy=True).flatten()

    def of(self, layer: str) -> torch.Tensor | None:
        """Bound q, k and v (3,) of attention `layers.N.self_attn`; None if a required tensor is missing."""
        block, _, attention = layer.rpartition(".")
        norm = self._seen.get(f"{block}.input_layernorm.weight")
        if norm is None or attention != "self_attn":
            return None
        projected = [self._projected(f"{layer}.{letter}_proj", norm) for letter in "qkv"]
        found = [bound for bound in projected if bound is not None]
        if len(found) < len(projected):
            return None
        for place, letter in enumerate("qk"):
            by_head = self._seen.get(f"{layer}.{letter}_norm.weight")
            longest = found[place] * sqrt(2) if by_head is None else by_head.abs().amax() * sqrt(by_head.numel())
            found[place] = longest * self._gain
        return torch.stack(found)

    def _projected(self, name: str, norm: torch.Tensor) -> torch.Tensor | None:
        columns, bias = self._seen.get(f"{name}.weight"), self._seen.get(f"{name}.bias")
        if columns is None or columns.shape != norm.shape:
            return None
        bound = (columns * norm).square().sum().sqrt() * sqrt(norm.numel())
        return bound if bias is None else bound + bias.abs().amax()
