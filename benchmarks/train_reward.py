"""The reward of a training that is only timed: half of all answers are right, whatever they say.

Neither all nor none: GRPO's advantages are then not zero, and no group of samples is left out for having one reward.
"""

import zlib


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_) -> float:
    """Score 0 or 1, by the answer's bytes; verl calls it by these names."""
    return float(zlib.crc32(solution_str.encode()) % 2)
