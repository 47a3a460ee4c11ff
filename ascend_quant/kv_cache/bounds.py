"""Upper bounds of q, k and v of a layer, computed from its weights: for KV cache scales before a trainer sends any.

The input of q_proj, k_proj and v_proj is x g, where g is the weight of the RMSNorm, which makes sum(x^2) at most H, the
length of x. By Cauchy-Schwarz, a row w gives at most sqrt(H) |w g| + |bias|. Every row of a matrix is bounded element
by element by the column maxima c of the matrix, so sqrt(H) |c g| + |bias| bounds all rows, and only c is stored until
the norm arrives. A per-head norm of q or k bounds the result by sqrt(D) max|g|. Rotating pairs of elements adds a
factor of at most sqrt(2), or none after such a norm.

A bound is ten to a few hundred times the observed amax. This costs little in fp8, since the relative error of e4m3 is
constant from 448 down to 2^-6, while a scale that is too small clips. The bounds ignore that weights and activations
are rounded to int8, which adds far less than the column maxima overestimate.
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
)  # model_type of models with the RMSNorm described above
PARTS = re.compile(
    r"(?:^|\.)(layers\.\d+)\.(input_layernorm\.weight|self_attn\.(?:[qkv]_proj\.(?:weight|bias)|[qk]_norm\.weight))$"
)


class Bounds:
    """Bounds of q, k and v from the tensors of a refit, in any order; one row of each is stored.

    Args:
        gain: maximum gain of the rotary embedding (above 1 for yarn).
    """

    def __init__(self, gain: float = 1.0):
        self._gain = gain
        self._seen: dict[str, torch.Tensor] = {}

    def begin(self) -> None:
        self._seen = {}

    def take(self, name: str, tensor: torch.Tensor) -> None:
        """Add a tensor that a bound needs, asynchronously, like a kernel that reads it; other tensors are ignored."""
        found = PARTS.search(name)
        if found is None or tensor.dim() > 2 or not tensor.numel():
            return
        kept = tensor.detach()
        if kept.dim() == 2:
            lowest, highest = torch.aminmax(kept, dim=0)
            kept = torch.maximum(highest, -lowest)
        self._seen[f"{found[1]}.{found[2]}"] = kept.to(torch.float32, copy=True).flatten()

    def of(self, layer: str) -> torch.Tensor | None:
        """Return bounds (3,) of q, k and v of attention `layers.N.self_attn`; None if a required tensor is missing."""
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
