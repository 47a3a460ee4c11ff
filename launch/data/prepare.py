"""From a name to its preparation."""

from pathlib import Path

from launch.data.errors import DataError
from launch.data.summary import Progress, Summary, silent

NAMES = ("gsm8k", "dapo-math-17k", "addition")


def prepare(name: str, source: Path | None, target: Path, progress: Progress = silent) -> Summary:
    """Write the data set `name` into `target`, over an earlier one. The same source gives the same bytes.

    Args:
        source: a folder with a copy of what is on the hub; None: the hub itself.

    Raises:
        DataError: the name is unknown, or the data cannot be had or are not what is published under that name.
    """
    if name not in NAMES:
        raise DataError(f"no data set {name!r}; there are: {', '.join(NAMES)}")
    if name == "addition":
        if source is not None:
            raise DataError(f"--from {source}: addition is made here, not copied: leave --from out")
        from launch.data import addition

        return addition.prepare(target, progress)
    if name == "gsm8k":
        from launch.data import gsm8k

        return gsm8k.prepare(source, target, progress)
    from launch.data import dapo_math

    return dapo_math.prepare(source, target, progress)
