"""Whole numbers in what users write. `str.isdecimal` is no proof that `int` takes a text: not one of 5,000 digits."""

import re


def whole(text: str) -> int | None:
    """A number of at most 18 of the digits 0 to 9; None for another text."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None
