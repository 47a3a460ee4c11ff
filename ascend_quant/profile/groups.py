"""How compressed-tensors quantizes weights: the groups of layers in its section of config.json."""

from dataclasses import dataclass
from typing import Any

from ascend_quant.profile.checkpoints import Checkpoint
from ascend_quant.profile.rules import ProfileError

METHOD = "compressed-tensors"
TYPES = ("int", "float")


@dataclass(frozen=True)
class Group:
    """The weights of some layers.

    Attributes:
        type: int or float.
        bits: of a code.
        strategy: channel, tensor, block, group, or a word that is not known here.
        size: neighbours that share a scale, if the strategy is group; 0 if not.
        block: rows and columns that share a scale, if the strategy is block; empty if not.
    """

    type: str
    bits: int
    strategy: str
    size: int = 0
    block: tuple[int, ...] = ()


def read_groups(checkpoint: Checkpoint) -> list[Group] | None:
    """The groups; None if config.json has none, or names another method.

    Raises:
        ProfileError: they are not as compressed-tensors writes them, or are asymmetric.
    """
    section = checkpoint.quantization or {}
    groups = section.get("config_groups")
    if groups is None or section.get("quant_method", METHOD) != METHOD:
        return None
    where = f"{checkpoint.folder / 'config.json'}: config_groups"
    if not isinstance(groups, dict):
        raise ProfileError(f"{where} is {groups!r:.80}, and no object")
    return [_group(group, f"{where}.{name}") for name, group in groups.items()]


def _group(group: Any, where: str) -> Group:
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise ProfileError(f"{where} does not say what becomes of weights: {group!r:.80}")
    kind, bits, strategy = (weights.get(key) for key in ("type", "num_bits", "strategy"))
    if kind not in TYPES or type(bits) is not int or not isinstance(strategy, str):
        raise ProfileError(f"{where}.weights: type {kind!r:.40}, num_bits {bits!r:.40}, strategy {strategy!r:.40}")
    if weights.get("symmetric", True) is not True:
        raise ProfileError(f"{where}.weights are asymmetric; only symmetric weights are supported")
    size, block = weights.get("group_size") if strategy == "group" else 0, weights.get("block_structure")
    if type(size) is not int:
        raise ProfileError(f"{where}.weights: group_size is {size!r:.40}, and no number")
    return Group(kind, bits, strategy, size, read_block(block, where) if strategy == "block" else ())


def read_block(block: Any, where: str) -> tuple[int, int]:
    """Rows and columns of a block.

    Raises:
        ProfileError: it is not two numbers.
    """
    if not isinstance(block, list) or [type(length) for length in block] != [int, int]:
        raise ProfileError(f"{where}: blocks are of {block!r:.40}, not of [rows, columns]")
    return tuple(block)
