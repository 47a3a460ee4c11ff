"""Values of a config.json, checked as they are read; an error names the field."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ascend_quant.advise import AdviceError

LARGEST = 1 << 24  # of any size: a hundred times the largest vocabulary
MISSING = object()


@dataclass(frozen=True)
class Fields:
    """The part of a config.json that describes the decoder.

    Attributes:
        within: where it lies in the file, for errors.
    """

    values: Mapping[str, Any]
    within: str = ""

    def wrong(self, key: str, why: str) -> AdviceError:
        return AdviceError(f"config.json: {self.within}{key} {why}")

    def size(self, *keys: str, default: Any = MISSING, least: int = 1) -> int:
        """A whole number under the first of these names that is there; one name a generation of configs.

        Raises:
            AdviceError: it is missing and has no default, or it is none.
        """
        key = next((key for key in keys if self.values.get(key) is not None), keys[0])
        found = self.values.get(key)
        if found is None and default is not MISSING:
            return default
        if type(found) is not int or not least <= found <= LARGEST:
            raise self.wrong(key, f"must be a whole number from {least} to {LARGEST}, not {found!r:.80}")
        return found

    def flag(self, key: str, default: bool = False) -> bool:
        found = self.values.get(key)
        if found is not None and type(found) is not bool:
            raise self.wrong(key, f"must be true or false, not {found!r:.80}")
        return default if found is None else found

    def numbers(self, key: str, below: int) -> list[int]:
        """Numbers of layers; none where it is missing."""
        found = self.values.get(key)
        found = [] if found is None else found
        if not isinstance(found, list) or not all(type(one) is int and 0 <= one < below for one in found):
            raise self.wrong(key, f"must be a list of layers from 0 on, not {found!r:.80}")
        return found

    def kinds(self, key: str, known: tuple[str, ...], length: int) -> list[str] | None:
        """A word a layer; None where it is missing."""
        found = self.values.get(key)
        if found is None:
            return None
        if not isinstance(found, list) or len(found) != length:
            raise self.wrong(key, f"must be a list with a word for each of {length} layers, not {found!r:.80}")
        if unknown := [word for word in found if word not in known]:
            raise self.wrong(key, f"{unknown[0]!r:.80} is not understood; known: {', '.join(known)}")
        return found
