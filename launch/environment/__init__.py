"""The environment variables of a run: the table of those that a launch sets, and what users set over it."""

import os
from collections.abc import Mapping

from launch.environment.merge import Setting, node_environment, overruled, rows

__all__ = ["Setting", "environment", "node_environment", "overruled", "rows"]


def environment(stack: str, current: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process of this stack, without a cluster: the table, overridden by what the user has set.

    Raises:
        ValueError: there is no such stack.
    """
    table = {row.name: row.value.format(nic="lo") for row in rows(stack) if row.process}
    return {**table, **(os.environ if current is None else current)}
