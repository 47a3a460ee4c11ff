"""Groups of parameters that share a smoothing factor, by name in a decoder layer (Llama, Qwen2, Qwen3, DeepSeek).

norm -> q, k, v            the norm is divided by a factor_K, its consumers are multiplied by it
norm -> gate, up, router   the same, in every expert
v -> o, up -> down         rows of the first are divided by a factor, columns of the second multiplied by it;
                           with grouped-query attention a head of v feeds several heads of o
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from ascend_quant.profile.checkpoints import BadCheckpoint

BLOCK = r"mlp\.(?:experts\.\d+\.|shared_experts?\.)?"
# norm: consumers without another factor, consumers whose rows may also be scaled, the layers after these
ROLES = {
    "input_layernorm": (
        r"self_attn\.(?:[qk]_proj|q_a_proj|kv_a_proj_with_mqa|indexer\.wk|indexer\.weights_proj)",
        r"self_attn\.v_proj",
        ("v_proj", "o_proj"),
    ),
    "post_attention_layernorm": (
        rf"mlp\.gate|mlp\.shared_expert_gate|{BLOCK}gate_proj",
        rf"{BLOCK}up_proj",
        ("up_proj", "down_proj"),
    ),
}
LAYER = re.compile(r"(?P<layer>.*\.layers\.\d+)\.(?P<rest>.+)\.weight")


@dataclass(frozen=True)
class Pair:
    """A pair of weights: the rows of the producer feed the columns of the consumer.

    Attributes:
        groups: number of `consumer` heads that one head of `producer` feeds; 1 without heads.
        head: number of channels per head; 1 without heads.
    """

    producer: str
    consumer: str
    groups: int = 1
    head: int = 1

    def spread(self, factor_N: torch.Tensor) -> torch.Tensor:
        """Return, for each column of the consumer, the factor of the producer's row that feeds it."""
        return factor_N.view(-1, 1, self.head).expand(-1, self.groups, -1).reshape(-1)

    def gathered(self, values_K: torch.Tensor) -> torch.Tensor:
        """Return the consumer's columns (N, groups) for each of the producer's rows."""
        return values_K.view(-1, self.groups, self.head).transpose(1, 2).reshape(-1, self.groups)


@dataclass(frozen=True)
class Group:
    """A norm and its consumers: `anchors` have only its factor, producers of `pairs` may have a second one."""

    norm: str
    anchors: tuple[str, ...]
    pairs: tuple[Pair, ...]

    @property
    def members(self) -> tuple[str, ...]:
        """Return the names of all weights of the group, the norm first."""
        paired = (name for pair in self.pairs for name in (pair.producer, pair.consumer))
        return (self.norm, *self.anchors, *paired)


def groups_of(names: Iterable[str], shapes: Callable[[str], tuple[int, ...]], config: dict) -> list[Group]:
    """Return the groups of every layer, in order.

    Args:
        shapes: shapes by parameter name.
        config: config.json or its `text_config`; must have `head_dim`, or `hidden_size` and `num_attention_heads`.

    Raises:
        BadCheckpoint: a producer has no consumer, or shapes do not match.
    """
    config = config.get("text_config") or config
    by_layer: dict[str, dict[str, str]] = {}
    for name in names:
        if match := LAYER.fullmatch(name):
            by_layer.setdefault(match["layer"], {})[match["rest"]] = name
    groups = []
    for members in by_layer.values():
        names_here = frozenset(members.values())
        for norm, (anchor, producer, partners) in ROLES.items():
            if norm in members:
                anchors = tuple(name for rest, name in members.items() if re.fullmatch(anchor, rest))
                producers = [name for rest, name in members.items() if re.fullmatch(producer, rest)]
                pairs = tuple(pair_of(name, partners, names_here, shapes, config) for name in producers)
                groups.append(Group(members[norm], anchors, pairs))
                check_shapes(groups[-1], shapes)
    return groups


def check_shapes(group: Group, shapes: Callable[[str], tuple[int, ...]]) -> None:
    """Check that all consumers of a norm (K) have K columns; raise BadCheckpoint otherwise."""
    norm = shapes(group.norm)
    for name in (*group.anchors, *(pair.producer for pair in group.pairs)):
        if len(norm) != 1 or len(shapes(name)) != 2 or shapes(name)[1:] != norm:
            raise BadCheckpoint(
                f"{group.norm} has shape {norm}, which does not match {shapes(name)} of {name}, which reads its output"
            )


def pair_of(
    producer: str,
    partners: tuple[str, str],
    names: frozenset[str],
    shapes: Callable[[str], tuple[int, ...]],
    config: dict,
) -> Pair:
    """Return the pair that begins with `producer`."""
    consumer = producer.replace(f".{partners[0]}.", f".{partners[1]}.")
    if consumer not in names:
        raise BadCheckpoint(f"{producer}: {consumer} is missing in the checkpoint")
    if not len(shapes(producer)) == len(shapes(consumer)) == 2:
        raise BadCheckpoint(f"{producer} is {shapes(producer)}, {consumer} {shapes(consumer)}: both must be matrices")
    rows, columns, head = shapes(producer)[0], shapes(consumer)[1], 1
    if partners[0] == "v_proj":
        head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if min(rows, columns, head) < 1 or rows % head or columns % rows:
        raise BadCheckpoint(
            f"{producer} has {rows} rows, which do not match {columns} columns of {consumer} with heads of {head} "
            "channels"
        )
    return Pair(producer, consumer, columns // rows, head)
