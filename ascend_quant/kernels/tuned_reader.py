"""Validation of files of tuned choices (tuned.py), value by value, since kernels rely on the tile sizes in them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

NUMBER = re.compile(r"[1-9][0-9]{0,8}")
BLOCK = re.compile(r"block_[mnk]|(up|down)_[nk]")  # fields that are sides of a tile
WARPS = re.compile(r"((up|down)_)?warps")
MORE = (0, 64)  # values of HopperTiles.more: none, or one warp group's tokens
ADDED = ("more",)  # fields that older files lack
LEAST_BLOCK, LARGEST = 16, 4096  # the minimum of tensor cores; more than any processor can hold
Choice = dict[str, int | bool | str]  # "by": an implementation, and its fields


class BadTable(ValueError):
    """Raised for an invalid file of choices; the message names the file and the place."""


class ChoicesReader(NamedTuple):
    """Reads a file of choices; its errors name the file and the place."""

    file: Path

    def object(self, value: object, place: str) -> dict:
        return value if isinstance(value, dict) else self._refuse(place, f"{value!r:.80} is not an object")

    def known(self, name: object, names: Mapping, place: str) -> bool:
        if not (isinstance(name, str) and name in names):
            self._refuse(place, f"{name!r:.80} is none of {', '.join(names)}")
        return True

    def numbers(self, text: str, place: str, axes: tuple[str, ...]) -> tuple[int, ...]:
        parts = text.split("x")
        if len(parts) != len(axes) or not all(map(NUMBER.fullmatch, parts)):
            self._refuse(place, f"{text!r:.80} is not {'x'.join(axes)} in positive integers")
        return tuple(map(int, parts))

    def choice(self, value: object, ways: Mapping[str, Mapping[str, type]], place: str) -> Choice:
        choice = self.object(value, place)
        self.known(choice.get("by"), ways, f"{place}.by")
        fields = ways[choice["by"]]
        for name in choice.keys() - {"by"}:
            self.known(name, fields, place)
        for name, kind in fields.items():
            if name not in choice and name in ADDED:
                continue
            found, least = choice.get(name), least_of(name)
            if type(found) is not kind:
                self._refuse(f"{place}.{name}", f"{found!r:.80} is not of type {kind.__name__}")
            if kind is int and not least <= found <= LARGEST:
                self._refuse(f"{place}.{name}", f"{found!r:.80} is not an int from {least} to {LARGEST}")
            if (BLOCK.fullmatch(name) or WARPS.fullmatch(name)) and found & (found - 1):
                self._refuse(f"{place}.{name}", f"{found} is not a power of 2, which Triton needs")
            if name == "more" and found not in MORE:
                self._refuse(f"{place}.{name}", f"{found} is none of {', '.join(map(str, MORE))}")
        return choice

    def _refuse(self, place: str, why: str):
        raise BadTable(f"{self.file}: {' '.join(place.split()):.200}: {why}; fix or delete it")


def least_of(name: str) -> int:
    """Return the minimum of a numeric field; only `ahead` and `more` may be zero."""
    return LEAST_BLOCK if BLOCK.fullmatch(name) else int(name not in ("ahead", "more"))
