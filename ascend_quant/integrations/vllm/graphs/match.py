"""A pattern matcher for FX graphs: it checks whether a graph computes a value as a given traced function does."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import fx
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx

ALIASES = (torch.ops.aten.alias.default, torch.ops.aten.detach.default)  # they return the tensor itself


def trace(function: Callable, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> fx.Graph:
    """Trace a function of tensors with these shapes into an FX graph, decomposed as Inductor does."""
    with torch._guards.tracing(None), unset_fake_temporarily(), FakeTensorMode():
        arguments = [torch.empty(shape, dtype=dtype, device="cpu") for shape in shapes]
        return make_fx(function, decomposition_table=select_decomp_table())(*arguments).graph


class Match:
    """A match of a traced function's nodes with those of a graph.

    Args:
        traced: result of `trace`; its first or only output is matched.
        value: the node that may be that output.

    Attributes:
        found: whether they match.
        arguments: the nodes of the function's arguments; None for arguments that the output does not depend on.
    """

    def __init__(self, traced: fx.Graph, value: fx.Node):
        self.places: dict[fx.Node, fx.Node] = {}
        results = traced.find_nodes(op="output")[0].args[0]
        self._results = results if isinstance(results, tuple | list) else (results,)
        self.found = self._is(self._results[0], value)
        self.arguments = [self.places.get(node) for node in traced.find_nodes(op="placeholder")]

    def result(self, index: int) -> fx.Node | None:
        """Return the graph's node of another output of the function, if the graph has it."""
        return self._find(self._results[index])

    def computed(self) -> list[fx.Node]:
        """Return the graph's nodes that the function covers, without its arguments."""
        return [place for node, place in self.places.items() if node.op != "placeholder"]

    def _find(self, node: fx.Node) -> fx.Node | None:
        if node in self.places:
            return self.places[node]
        above = [self._find(argument) for argument in node.all_input_nodes]
        if None in above or not above:
            return None
        return next((user for user in list(above[0].users) if self._is(node, user)), None)

    def _is(self, node: fx.Node, other: object) -> bool:
        node, other = _itself(node), _itself(other)
        if node in self.places or not isinstance(other, fx.Node):
            return self.places.get(node) is other
        if node.op == "placeholder":
            self.places[node] = other
            return True
        if node.op != other.op or not _same_op(node.target, other.target):
            return False
        before = copy.copy(self.places)
        if self._are(_arguments(node), _arguments(other)):
            self.places[node] = other
            return True
        self.places = before
        return False

    def _are(self, ours: object, others: object) -> bool:
        if isinstance(ours, fx.Node):
            return self._is(ours, others)
        if isinstance(ours, tuple | list):
            same = isinstance(others, tuple | list) and len(ours) == len(others)
            return same and all(self._are(a, b) for a, b in zip(ours, others, strict=True))
        return not isinstance(others, fx.Node) and ours == others


def _itself(node: object) -> object:
    while isinstance(node, fx.Node) and node.target in ALIASES:
        node = node.args[0]
    return node


def _same_op(ours: object, other: object) -> bool:
    if ours is other:
        return True
    # vLLM's own ops have an overload that may overwrite its arguments; it does not occur in functional graphs
    return getattr(ours, "namespace", None) == "vllm_ir" and ours.overloadpacket is getattr(
        other, "overloadpacket", None
    )


def _arguments(node: fx.Node) -> list:
    """Return all arguments in the order of the op's schema, with defaults filled in."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return [*node.args, *node.kwargs.values()]
    rest = node.target._schema.arguments[len(node.args) :]
    return [*node.args, *(node.kwargs.get(argument.name, argument.default_value) for argument in rest)]
