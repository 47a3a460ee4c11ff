"""Which rows of which engine parameter each of the trainer's tensors ends in, on one rank: Megatron's rules.

Written from the rules alone and not from vLLM's loaders, so that a check against it is a second opinion.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.models import Model

WHOLE = slice(None)


class Piece(NamedTuple):
    """Rows of one of the trainer's tensors; they follow the previous piece's in the engine's parameter.

    Attributes:
        rows, columns: which part of the tensor; a vector has rows alone.
    """

    name: str
    rows: slice = WHOLE
    columns: slice = WHOLE


@dataclass(frozen=True)
class Rank:
    """One of the GPUs that share a model.

    Attributes:
        expert_parallel: whether experts are dealt out whole instead of being cut like every other layer.
    """

    index: int = 0
    count: int = 1
    expert_parallel: bool = False

    def part(self, length: int) -> slice:
        """This rank's share of `length` rows, columns or experts.

        Raises:
            ValueError: the ranks cannot share them evenly.
        """
        if length % self.count:
            raise ValueError(f"{self.count} ranks cannot share {length} rows, columns or experts evenly")
        share = length // self.count
        return slice(self.index * share, (self.index + 1) * share)


def layout(model: Model, layers: list[int], rank: Rank) -> dict[str, list[Piece]]:
    """The pieces of every parameter in some layers, by the engine's name of it; and of those outside the layers."""
    vocabulary = rank.part(model.vocab)
    parameters = {
        "model.embed_tokens.weight": [Piece("model.embed_tokens.weight", vocabulary)],
        "model.norm.weight": [Piece("model.norm.weight")],
        "lm_head.weight": [Piece("lm_head.weight", vocabulary)],
    }
    for layer in layers:
        parameters |= _layer(model, f"model.layers.{layer}", rank)
    return parameters


def _layer(model: Model, prefix: str, rank: Rank) -> dict[str, list[Piece]]:
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    heads = {"q": model.heads, "k": model.kv_heads, "v": model.kv_heads}
    rows = {letter: _heads(count, model.head_dim, rank) for letter, count in heads.items()}
    whole = [f"{prefix}.input_layernorm.weight", f"{prefix}.post_attention_layernorm.weight"]
    parameters = {
        f"{attention}.qkv_proj.weight": [Piece(f"{attention}.{letter}_proj.weight", rows[letter]) for letter in "qkv"],
        f"{attention}.o_proj.weight": [
            Piece(f"{attention}.o_proj.weight", columns=rank.part(model.heads * model.head_dim))
        ],
    }
    if model.experts:
        whole += [f"{attention}.q_norm.weight", f"{attention}.k_norm.weight", f"{mlp}.gate.weight"]
        parameters[f"{mlp}.experts.w13_weight"] = list(_gate_up(model, f"{mlp}.experts", rank))
        parameters[f"{mlp}.experts.w2_weight"] = list(_down(model, f"{mlp}.experts", rank))
    else:
        share = rank.part(model.width)
        biases = [Piece(f"{attention}.{letter}_proj.bias", rows[letter]) for letter in "qkv"]
        parameters[f"{attention}.qkv_proj.bias"] = biases
        gate_up = [Piece(f"{mlp}.{leaf}_proj.weight", share) for leaf in ("gate", "up")]
        parameters[f"{mlp}.gate_up_proj.weight"] = gate_up
        parameters[f"{mlp}.down_proj.weight"] = [Piece(f"{mlp}.down_proj.weight", columns=share)]
    return parameters | {name: [Piece(name)] for name in whole}


def _heads(count: int, size: int, rank: Rank) -> slice:
    """The rows of this rank's heads; where there are fewer heads than ranks, several ranks hold the same one."""
    if count >= rank.count:
        return rank.part(count * size)
    head = rank.index // (rank.count // count)
    return slice(head * size, (head + 1) * size)


def _gate_up(model: Model, prefix: str, rank: Rank) -> Iterator[Piece]:
    share = WHOLE if rank.expert_parallel else rank.part(model.expert_width)
    for expert in _experts(model, rank):
        yield Piece(f"{prefix}.{expert}.gate_proj.weight", share)
        yield Piece(f"{prefix}.{expert}.up_proj.weight", share)


def _down(model: Model, prefix: str, rank: Rank) -> Iterator[Piece]:
    share = WHOLE if rank.expert_parallel else rank.part(model.expert_width)
    for expert in _experts(model, rank):
        yield Piece(f"{prefix}.{expert}.down_proj.weight", columns=share)


def _experts(model: Model, rank: Rank) -> range:
    own = rank.part(model.experts) if rank.expert_parallel else slice(0, model.experts)
    return range(own.start, own.stop)
