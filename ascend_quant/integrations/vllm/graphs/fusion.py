"""A fusion pass over vLLM's compiled graphs: RMSNorm (rms_norm, fused_add_rms_norm) or SiLU-and-multiply, and the
quantization of its result, become one kernel. The pattern is traced from the model's own layer (match.py).

vLLM runs a custom pass over each graph. The pass visits each op `quantize_tokens`: if its input is computed as one of
the model's own layers computes it, traced here, and has no other user, an op of token_ops.py replaces both. If vLLM
computes a layer in another way, both stay unchanged. In an exact engine these layers are already ops
(kernels/exact_ops.py), so there is nothing to trace.
"""

import copy
import logging
import operator
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import fx, nn
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.layernorm import RMSNorm

from ascend_quant.integrations.vllm.compat import base_of_passes
from ascend_quant.integrations.vllm.graphs import match as graph_match
from ascend_quant.integrations.vllm.graphs.match import Match, trace
from ascend_quant.kernels import exact_ops
from ascend_quant.kernels.cuda.serve import token_ops, triton_fused_tokens

logger = logging.getLogger(__name__)

QUANTIZE = token_ops.quantize_tokens._opoverload
NORM, ADD_NORM = token_ops.rms_norm_quantize._opoverload, token_ops.add_rms_norm_quantize._opoverload
SILU = token_ops.silu_mul_quantize._opoverload
NAMES = {NORM: "with RMSNorm", ADD_NORM: "with RMSNorm of a sum", SILU: "with SiLU times up", None: "alone"}
EXACT = {
    exact_ops.rms_norm._opoverload: NORM,
    exact_ops.add_rms_norm._opoverload: ADD_NORM,
    exact_ops.silu_mul._opoverload: SILU,
}
SOURCES = [Path(__file__), Path(graph_match.__file__), Path(token_ops.__file__)]  # hashed
TOKENS = 7  # number of tokens to trace with

_layers: dict[tuple, nn.Module] = {}
_told: set[str] = set()


def _is_plain(norm: RMSNorm) -> bool:
    return getattr(norm, "has_weight", True) and getattr(norm, "variance_size_override", None) is None


def _without_weights(layer: nn.Module) -> nn.Module:
    layer = copy.copy(layer)
    layer._parameters = {}
    return layer


class FuseQuantization(base_of_passes()):
    """Compiler pass that fuses norms and activations with quantization; it has no state, since vLLM copies passes."""

    def learn(self, model: nn.Module) -> None:
        """Record the computations of layers that can be fused, without keeping their weights."""
        for layer in model.modules():
            if type(layer) is SiluAndMul:
                _layers.setdefault((SiluAndMul,), _without_weights(layer))
            elif type(layer) is RMSNorm and _is_plain(layer):
                _layers.setdefault((RMSNorm, layer.weight.shape[0], layer.variance_epsilon), _without_weights(layer))

    def __call__(self, graph: fx.Graph) -> None:
        quantizations = [node for node in graph.nodes if node.target is QUANTIZE]
        found = Counter(NAMES[_fuse(graph, node)] for node in quantizations)
        text = ", ".join(f"{count} {name}" for name, count in sorted(found.items()))
        if text and text not in _told:  # logged once per kind of graph, since most of a model's are alike
            _told.add(text)
            logger.info("kernels that quantize the activations of the graph: %s", text)

    def uuid(self) -> str:
        """Return the hash that identifies this pass in compile caches."""
        return self.hash_source(*(path.read_text() for path in SOURCES))

    def __repr__(self) -> str:  # hashed by older versions of vLLM
        return f"{type(self).__name__}({self.uuid()[:16]})"


class Fused(NamedTuple):
    """A layer's computation, and the op that fuses it with the quantization of its result."""

    op: torch._ops.OpOverload
    traced: fx.Graph
    constants: tuple[float, ...] = ()


def _fuse(graph: fx.Graph, quantize: fx.Node) -> torch._ops.OpOverload | None:
    """Replace an op and the computation of its argument with the fused op; returns the latter."""
    value = quantize.args[0]
    shown = value.meta.get("val")
    if shown is None or shown.dim() != 2 or not isinstance(shown.shape[1], int) or len(value.users) > 1:
        return None
    if (op := _fuse_exact(graph, quantize, value)) is not None:
        return op
    for key in _layers:
        for fused in _fusions(key, shown.shape[1], shown.dtype):
            match = Match(fused.traced, value)
            if match.found and _replace(graph, quantize, fused, match):
                return fused.op
    logger.debug("activations quantized by a separate kernel: %s", value.format_node())
    return None


def _fuse_exact(graph: fx.Graph, quantize: fx.Node, value: fx.Node) -> torch._ops.OpOverload | None:
    """Fuse a quantization whose argument is computed by an op of kernels/exact_ops.py; None if there is no such op."""
    exact = value.args[0] if value.target is operator.getitem else value
    op = EXACT.get(exact.target)
    if op is None or not triton_fused_tokens.takes(value.meta["val"].shape[1], value.meta["val"].dtype):
        return None
    with graph.inserting_before(exact):
        new = graph.call_function(op, (*exact.args, True))
        given = [argument.meta["val"] if isinstance(argument, fx.Node) else argument for argument in new.args]
        new.meta["val"] = op(*given)
        if op is ADD_NORM:
            total = graph.call_function(operator.getitem, (new, 2))
            total.meta["val"] = new.meta["val"][2]
            for user in [user for user in exact.users if user is not value]:
                user.replace_all_uses_with(total)
    quantize.replace_all_uses_with(new)
    for node in (quantize, value, *exact.users, exact):
        if not node.users and node in graph.nodes:
            graph.erase_node(node)
    return op


@cache
def _fusions(key: tuple, columns: int, dtype: torch.dtype) -> list[Fused]:
    """Return the possible computations of a layer with this many output columns, with the fused op of each."""
    if not triton_fused_tokens.takes(columns, dtype):
        return []
    try:
        return _traced(key, columns, dtype)
    except Exception as error:  # for future versions of vLLM; a layer that cannot be traced is not fused
        logger.warning(
            "%s cannot be traced, so its results are quantized by a separate kernel: %s", key[0].__name__, error
        )
        return []


def _traced(key: tuple, columns: int, dtype: torch.dtype) -> list[Fused]:
    layer, rows = _layers[key], (TOKENS, columns)
    if key[0] is SiluAndMul:
        return [Fused(SILU, trace(layer.forward_native, [(TOKENS, 2 * columns)], dtype))]
    _, width, eps = key
    if width != columns:
        return []
    add_norm, norm = _with_weight(layer, 2), _with_weight(layer, 1)
    return [
        Fused(ADD_NORM, trace(add_norm, [rows, rows, (columns,)], dtype), (eps,)),
        Fused(NORM, trace(norm, [rows, (columns,)], dtype), (eps,)),
    ]


def _with_weight(norm: nn.Module, inputs: int) -> Callable:
    """Turn the layer into a function whose last argument is its weight."""

    def function(*arguments):
        norm._parameters["weight"] = arguments[inputs]
        try:
            return norm.forward_native(*arguments[:inputs])
        finally:
            norm._parameters.clear()

    # make_fx counts the arguments
    return (lambda x, weight: function(x, weight)) if inputs == 1 else (lambda x, y, weight: function(x, y, weight))


def _replace(graph: fx.Graph, quantize: fx.Node, fused: Fused, match: Match) -> bool:
    arguments = match.arguments
    if any(node is None or node.meta["val"].dtype != torch.bfloat16 for node in arguments):
        return False
    total = match.result(1) if fused.op is ADD_NORM else None
    place = {node: i for i, node in enumerate(graph.nodes)}
    last = max(place[node] for node in arguments)
    behind = min((node for node in match.computed() if place[node] > last), key=place.get)
    if total is not None and any(place[user] < place[behind] for user in total.users):
        return False
    with graph.inserting_before(behind):
        new = graph.call_function(fused.op, (*arguments, *fused.constants))
        new.meta["val"] = fused.op(*(node.meta["val"] for node in arguments), *fused.constants)
        if total is not None:
            summed = graph.call_function(operator.getitem, (new, 2))
            summed.meta["val"] = new.meta["val"][2]
            total.replace_all_uses_with(summed)
    quantize.replace_all_uses_with(new)  # its results are the first two of the new op
    for node in sorted({quantize, *match.computed()}, key=place.get, reverse=True):
        if not node.users:
            graph.erase_node(node)
    return True
