"""The demo's reward: 1 if the result is exactly right, otherwise 0. verl loads this file by its path."""

from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    """Score a response 1.0 or 0.0, by verl's custom reward signature; `solution_str` is decoded without special tokens.

    The result is the text after the last colon of a response, or the whole response without one.
    """
    return float(solution_str.rpartition(":")[2] == ground_truth)
