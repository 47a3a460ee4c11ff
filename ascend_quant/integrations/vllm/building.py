"""The part of a model that this process is building, for code that vLLM calls for single layers."""

from collections.abc import Iterator
from contextlib import contextmanager


class Building:
    """A flag that is true while a part of one kind is being built; parts may be nested."""

    def __init__(self) -> None:
        self._depth = 0

    def __bool__(self) -> bool:
        return self._depth > 0

    @contextmanager
    def part(self) -> Iterator[None]:
        """Context in which a part is being built."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
