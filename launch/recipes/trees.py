"""Settings as trees, and as dotted keys."""

from collections.abc import Iterator
from typing import Any


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """{"a": {"b": 1}} -> ("a.b", 1). An empty mapping is a value."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
