"""The environment of one host: the table, then what the user says, the strongest last.

    table < recipe < inventory < host (of the inventory) < shell

Runs on the host itself, when its NIC and devices are known, and for `--dry-run` with words in their place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launch.environment.table import TABLE, Variable

FAMILY = {"ipv4": "AF_INET", "ipv6": "AF_INET6"}


@dataclass(frozen=True)
class Setting:
    """A variable of a host.

    Attributes:
        source: table, recipe, inventory, host or shell.
        why: the table's reason; empty for a variable that is not in the table.
        instead_of: the value that the user's replaces, if there was another.
    """

    name: str
    value: str
    source: str
    why: str = ""
    instead_of: str | None = None


def rows(stack: str) -> list[Variable]:
    """The table's rows for a stack.

    Raises:
        ValueError: there is no such stack.
    """
    found = [variable for variable in TABLE if stack in variable.stacks]
    if not found:
        stacks = dict.fromkeys(stack for variable in TABLE for stack in variable.stacks)
        raise ValueError(f"unknown stack {stack!r}: choose one of {', '.join(stacks)}")
    return found


def node_environment(
    stack: str, values: Mapping[str, str], layers: Sequence[tuple[str, Mapping[str, str]]]
) -> list[Setting]:
    """The variables of a host, in the table's order, then those that only users set.

    Args:
        values: for the table's templates: address, nic, family (ipv4 or ipv6), devices, and NodePlan.values.
        layers: who says so (recipe, inventory, host, shell), and the variables; the strongest last.
    """
    filled = {**values, "hccl_family": FAMILY.get(values["family"], values["family"])}
    found = {row.name: Setting(row.name, row.value.format_map(filled), "table", row.why) for row in rows(stack)}
    for source, variables in layers:
        for name, value in variables.items():
            below = found.get(name)
            if below is None:
                found[name] = Setting(name, value, source)
            else:
                replaced = below.value if below.value != value else below.instead_of
                found[name] = Setting(name, value, source, below.why, replaced)
    return list(found.values())


def overruled(settings: Sequence[Setting], own: Mapping[str, str]) -> list[str]:
    """A line for each variable that a host's login environment (`own`) has otherwise: none is replaced in silence."""
    from launch.environment.users import shown

    return [
        f"{one.name}: this host's login environment says {shown(one.name, own[one.name])}; the run uses "
        f"{shown(one.name, one.value)} ({one.source}). If the host's is right, write it into the inventory"
        for one in settings
        if one.name in own and own[one.name] != one.value
    ]
