"""SmoothAttention: outlier key channels balanced for an int8 KV cache at each refit's end (oracle/key_balance.py).

    rows of q times s, rows of k over s       in their scales and biases, or in the weights if these are BF16
    weights of q_norm and k_norm likewise     if heads have norms after the projections

All factors are powers of two, so codes do not change, and the model computes the same numbers. They are computed from
the resident tensors once those are complete, so neither the order of a trainer's tensors nor their buckets matter, and
a rank needs only its own tensors. Ranks with copies of a head compute the same factors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ascend_quant import oracle
from ascend_quant.kernels import kernels_for
from ascend_quant.kv_cache.bounds import NORM_BEFORE_ATTENTION
from ascend_quant.oracle import add_digests
from ascend_quant.oracle.key_balance import key_balance, key_sizes
from ascend_quant.refit import Check
from ascend_quant.refit.resident import QuantizedWeight, ResidentWeight
from ascend_quant.refit.scales import TensorScaledWeight


@dataclass(frozen=True)
class Attention:
    """The tensors and sizes of one attention layer on one rank.

    Attributes:
        name: the layer's name.
        input_norm: weights of the RMSNorm before the projections.
        qkv: rows of all query heads, key heads and value heads, in this order; query heads of a group are adjacent.
        bias: bias of these rows.
        q_norm, k_norm: weights of the RMSNorms after the projections, shared by all heads.
        heads, kv_heads, head: number of query heads and of key heads, and head size.
    """

    name: str
    input_norm: ResidentWeight
    qkv: ResidentWeight
    bias: ResidentWeight | None
    q_norm: ResidentWeight | None
    k_norm: ResidentWeight | None
    heads: int
    kv_heads: int
    head: int


def why_unknown(model_type: str) -> str | None:
    """Return why the magnitude of keys is unknown for this model type; None if an RMSNorm precedes attention."""
    if model_type in NORM_BEFORE_ATTENTION:
        return None
    return f"models of type {model_type} are not known to have RMSNorm before q, k and v"


def is_served(qkv: ResidentWeight) -> bool:
    """Return whether rows are stored as rows, with at most one scale each."""
    return qkv.layout is None and (not qkv.codes or type(qkv) in (QuantizedWeight, TensorScaledWeight))


class KeyBalance(Check):
    """SmoothAttention of one engine worker.

    Args:
        attentions: the model's attention layers; empty if it is not supported.
        why_not: the reason if it is not supported.

    Attributes:
        factors: factors of the last closed refit by layer name, float32 (kv_heads, head) on the device.
        cache_since: number of the refit that set the current factors; keys that were cached earlier have other factors.
    """

    def __init__(self, attentions: Sequence[Attention], why_not: str | None = None):
        self._attentions, self.why_not = attentions, why_not
        self._touched = [pair for attention in attentions for pair in _touched(attention)]
        self.factors: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def transform(self) -> None:
        """Balance the tensors of a refit, all of which have been written since the last call; asynchronous."""
        before = self._digests()
        self._new = {attention.name: _balanced(attention) for attention in self._attentions}
        self._moved = [self._digests(), before]

    def settle(self, number: int, digest: int) -> int:
        """Complete refit `number`, and correct the digest for the balanced tensors; waits for the device.

        Args:
            digest: digest of all residents as they were written.

        Returns:
            The digest of all residents after balancing.
        """
        if not self._attentions:
            return digest
        changed = [self._new[name].ne(former).any() for name, former in self.factors.items()]
        if not changed or bool(torch.stack(changed).any()):
            self.cache_since = number
        self.factors = self._new
        weights = [weight for _, weight in self._touched]
        found = kernels_for(self._touched[0][0].device).read_digests(self._moved)
        return add_digests(digest, *found, weights=[1, *weights, *(-weight for weight in weights)])

    def _digests(self) -> Any:
        """Start the digest kernels for the balanced tensors; `read_digests` reads the results."""
        tensors = [tensor for tensor, _ in self._touched]
        return kernels_for(tensors[0].device).digests(tensors) if tensors else None


def _touched(one: Attention) -> list[tuple[torch.Tensor, int]]:
    """Return the tensors that balancing scales, each with its weight in the digest of all residents."""
    if one.k_norm is not None and one.q_norm is not None:
        return [(norm.data, norm.weight) for norm in (one.q_norm, one.k_norm)]
    of_rows = (one.qkv.scale.view(-1), 3 * one.qkv.weight) if isinstance(one.qkv, QuantizedWeight) else None
    found = [of_rows or (one.qkv.data, one.qkv.weight)]
    return found if one.bias is None else [*found, (one.bias.data, one.bias.weight)]


def _balanced(one: Attention) -> torch.Tensor:
    """Scale the tensors of one layer; return its factors (G, D)."""
    keys = slice(one.heads * one.head, (one.heads + one.kv_heads) * one.head)
    bias_N = None if one.bias is None else one.bias.data[keys]
    k_norm_D = None if one.k_norm is None else one.k_norm.data
    sizes = key_sizes(_rows(one.qkv, keys), one.input_norm.data, bias_N, k_norm_D, one.head)
    factor_GD = key_balance(*sizes, shared=k_norm_D is not None)
    if one.k_norm is not None and one.q_norm is not None:
        one.q_norm.data *= factor_GD[0]
        one.k_norm.data /= factor_GD[0]
        return factor_GD
    for tensor, _ in _touched(one):
        queries, shape = tensor[: keys.start], (-1, *[1] * (tensor.dim() - 1))
        of_queries = factor_GD.repeat_interleave(one.heads // one.kv_heads, 0)
        queries *= of_queries.view(shape)
        tensor[keys] /= factor_GD.view(shape)
    return factor_GD


def _rows(weight: ResidentWeight, rows: slice) -> torch.Tensor:
    """Return the values of some rows."""
    if isinstance(weight, QuantizedWeight):
        return oracle.dequantize(weight.data[rows], weight.scale.view(-1)[rows])
    return weight.data[rows]
