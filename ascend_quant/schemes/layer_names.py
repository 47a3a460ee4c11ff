"""Layer names and ignore patterns, with the same meaning in engines, in training and in checkpoints.

    checkpoint, trainer                                           engine (vLLM)
    self_attn.q_proj, k_proj, v_proj                              self_attn.qkv_proj
    mlp.gate_proj, up_proj                                        mlp.gate_up_proj
    self_attn.q_a_proj, kv_a_proj_with_mqa                        self_attn.fused_qkv_a_proj
    mlp.experts.N.gate_proj.., or stacks in mlp.experts           mlp.experts

A pattern of `ignore` (a full name, or "re:" and a regular expression that matches from the beginning of a name) may use
any of these names. A fused layer is quantized as a whole or not at all, so a pattern that matches only a part of it is
an error.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType
from typing import NamedTuple

HEAD = "lm_head"  # a layer even if it is tied, and therefore not in a checkpoint
HEADS = (HEAD, "output_layer")  # last component of a layer's name
ROUTERS = ("gate", "router", "shared_expert_gate")
BUILT_PLAIN = (
    "eh_proj",
    "indexer.wk",
    "indexer.weights_proj",
)  # last component; vLLM builds these without quantization
FUSED = {  # vLLM's packed_modules_mapping
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}
FUSED_INTO = {part: fused for fused, parts in FUSED.items() for part in parts}
EXPERT = re.compile(r"(?P<experts>(.*\.)?experts)\.\d+\..+")
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")  # of an expert
MEGATRON = {  # component of a name in a decoder layer -> checkpoint names, as in megatron-core's bridges
    r"self_attention\.linear_qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    r"self_attention\.linear_q_proj": ("self_attn.q_proj",),
    r"self_attention\.linear_q_down_proj": ("self_attn.q_a_proj",),
    r"self_attention\.linear_q_up_proj": ("self_attn.q_b_proj",),
    r"self_attention\.linear_kv_down_proj": ("self_attn.kv_a_proj_with_mqa",),
    r"self_attention\.linear_kv_up_proj": ("self_attn.kv_b_proj",),
    r"self_attention\.linear_proj": ("self_attn.o_proj",),
    r"mlp\.router": ("mlp.gate",),
    r"mlp\.experts(\..*)?": ("mlp.experts",),
    r"mlp\.(shared_experts\.)?linear_fc1": (r"mlp.\g<1>gate_proj", r"mlp.\g<1>up_proj"),
    r"mlp\.(shared_experts\.)?linear_fc2": (r"mlp.\g<1>down_proj",),
}
SHOWN = 8  # names that one message lists


class PatternError(ValueError):
    """Raised for a pattern of `ignore` that is invalid, matches nothing, or matches only part of a fused layer."""


class Layer(NamedTuple):
    """A layer that is quantized as a whole or not at all.

    Attributes:
        name: the engine's name of the layer.
        parts: for each checkpoint tensor of the layer, all its names, its own first.
    """

    name: str
    parts: tuple[tuple[str, ...], ...]


def layer_of(name: str, fused: Mapping[str, Sequence[str]] = FUSED) -> Layer:
    """Return a layer by the engine's name.

    Args:
        fused: parts of fused layers of this engine's model that `FUSED` lacks, by the last component of the name.
    """
    owner, dot, leaf = name.rpartition(".")
    parts = [f"{owner}{dot}{part}" for part in FUSED.get(leaf) or fused.get(leaf) or (leaf,)]
    return Layer(name, tuple(tuple(dict.fromkeys((part, name))) for part in parts))


def experts_of(name: str, count: int) -> Layer:
    """Return the experts of a layer as one layer, by their common name."""
    parts = (f"{name}.{expert}.{projection}" for expert in range(count) for projection in PROJECTIONS)
    return Layer(name, tuple(_names_of_expert(name, part) for part in parts))


def layers_of(names: Iterable[str], stacks: Mapping[str, int] = MappingProxyType({})) -> dict[str, Layer]:
    """Map names of a checkpoint, a trainer or an engine to the engine's layers; several names may map to one.

    Args:
        names: all names of a model: a layer is part of a fused one if the other parts exist too.
        stacks: names that stand for all experts of a layer, with their number.
    """
    present = dict.fromkeys(names)
    experts: dict[str, list[str]] = {}
    found: dict[str, Layer] = {}
    for name in present:
        if name in stacks:
            found[name] = experts_of(name, stacks[name])
            continue
        if match := EXPERT.fullmatch(name):
            experts.setdefault(match["experts"], []).append(name)
            continue
        owner, dot, leaf = name.rpartition(".")
        fused = FUSED_INTO.get(leaf)
        whole = fused is not None and all(f"{owner}{dot}{part}" in present for part in FUSED[fused])
        found[name] = layer_of(f"{owner}{dot}{fused}" if whole else name)
    for name, members in experts.items():
        layer = Layer(name, tuple(_names_of_expert(name, member) for member in members))
        found |= dict.fromkeys(members, layer)
    return found


def from_megatron(part: str, layer: int) -> list[str]:
    """Return the checkpoint names of a module of Megatron's decoder layer: several if fused, none if no layer.

    Args:
        part: name of the module within the decoder layer.
        layer: index of the decoder layer in the whole model, from 0.
    """
    return [
        f"model.layers.{layer}.{found.expand(name)}"
        for pattern, names in MEGATRON.items()
        if (found := re.fullmatch(pattern, part))
        for name in names
    ]


def keeps_its_dtype(name: str) -> bool:
    """Return whether a layer is never quantized: lm_head, routers, and layers that vLLM always builds unquantized."""
    return name.rpartition(".")[2] in (*ROUTERS, *HEADS) or f".{name}".endswith(tuple(f".{one}" for one in BUILT_PLAIN))


def _names_of_expert(experts: str, name: str) -> tuple[str, ...]:
    """Return all names of an expert's tensor: its own, the fused layer's, the stack's, and that of all experts."""
    owner, _, leaf = name.rpartition(".")
    fused = FUSED_INTO.get(leaf, leaf)
    return tuple(dict.fromkeys((name, f"{owner}.{fused}", f"{experts}.{fused}", experts)))


class Ignored:
    """The patterns of `ignore`, and which of them have matched a name.

    Raises:
        PatternError: a regular expression is invalid.
    """

    def __init__(self, patterns: Iterable[str] = ()):
        self.patterns = tuple(patterns)
        self.expressions = {one: _compiled(one) for one in self.patterns if one.startswith("re:")}
        self._plain = set(self.patterns) - set(self.expressions)
        self._used: set[str] = set()
        self._met: dict[str, bool] = {}

    def meet(self, name: str) -> bool:
        """Return whether a pattern matches this name; all matching patterns are marked as used."""
        if name not in self._met:
            found = {one for one, expression in self.expressions.items() if expression.match(name)}
            found |= self._plain & {name}
            self._used |= found
            self._met[name] = bool(found)
        return self._met[name]

    def covers(self, layer: Layer) -> bool:
        """Return whether a layer is not quantized.

        Raises:
            PatternError: only a part of the layer is ignored.
        """
        meant = {part[0]: any([self.meet(name) for name in part]) for part in layer.parts}  # marks all used
        if all(meant.values()) or not any(meant.values()):
            return all(meant.values())
        named, others = ([one for one in meant if meant[one] is wanted] for wanted in (True, False))
        raise PatternError(
            f"ignore={list(self.patterns)} names {_listed(named)}, but not {_listed(others)}, which the "
            f"engine fuses into one layer, {layer.name}: ignore all of them or none"
        )

    def among(self, layers: Mapping[str, Layer], of: str) -> set[str]:
        """Return the names of the unquantized layers among all layers of a model, see `layers_of`.

        Raises:
            PatternError: see `covers` and `check_used`.
        """
        found = {name for name, layer in layers.items() if self.covers(layer)}
        self.check_used(of)
        return found

    def unused(self) -> list[str]:
        """Return the patterns that have not matched a name so far."""
        return [one for one in self.patterns if one not in self._used]

    def check_used(self, of: str, elsewhere: Iterable[Sequence[str]] = ()) -> None:
        """Raise PatternError if a pattern has matched nothing, since it is misspelt.

        Args:
            of: description of the model, for the message.
            elsewhere: patterns unused on other ranks, which have other layers.
        """
        self.meet(HEAD)
        if unused := [one for one in self.unused() if all(one in others for others in elsewhere)]:
            raise PatternError(
                f"ignore: {unused[0]!r} matches no layer of {of}; give a layer's name without .weight, or re: "
                "and a regular expression that matches from the start; the experts of a layer have one name: "
                "..mlp.experts"
            )


@dataclass(frozen=True)
class Unquantized:
    """The unquantized layers of kinds that are quantized, without those of `keeps_its_dtype`, which never are.

    Attributes:
        scheme: scheme of the other layers.
        names: the engine's names, sorted.
    """

    scheme: str
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, scheme: str, names: Iterable[str]) -> "Unquantized":
        """Create it from the names, as in `layers_of`, of all unquantized layers."""
        layers = layers_of(name for name in names if not keeps_its_dtype(name))
        return cls(scheme, tuple(sorted({layer.name for layer in layers.values()})))

    @property
    def digest(self) -> str:
        """The first 16 hex digits of the SHA-256 of scheme and names."""
        return sha256("\n".join((self.scheme, *self.names)).encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"{len(self.names)} layers ({self.digest}){': ' if self.names else ''}{_listed(self.names)}"

    def differences(self, trainer: "Unquantized") -> list[str]:
        """Describe the layers that the trainer quantizes and this engine does not, or vice versa."""
        if trainer.digest == self.digest:
            return []
        found = [f"{name} only in the engine" for name in self.names if name not in trainer.names]
        return found + [f"{name} only in the trainer" for name in trainer.names if name not in self.names]


@dataclass(frozen=True)
class LeftOut:
    """The tensors that the engine's own loader skips by design, by the names under which they were sent, sorted."""

    names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{len(self.names)} tensors{': ' if self.names else ''}{_listed(self.names)}"


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern.removeprefix("re:"))
    except re.error as error:
        raise PatternError(f"ignore: {pattern!r:.80} is not a regular expression: {error}") from error


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
