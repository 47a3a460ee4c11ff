"""Data sets as verl reads them: `./run.sh data NAME` from a local copy or the hub, to parquet files in one folder.

    prepare("gsm8k", None, Path("data")).lines()

gsm8k.py, dapo_math.py and addition.py say what each becomes; files.py finds, reads and writes the files. The columns
are those of verl's RLHFDataset, the sources those that verl's default reward knows (0.9.1 and older).
"""

from pathlib import Path

from launch.data.files import DataError, Progress, Summary, WrongRequest, silent

__all__ = ["NAMES", "DataError", "Summary", "WrongRequest", "prepare"]

NAMES = ("gsm8k", "dapo-math-17k", "addition")


def prepare(name: str, source: Path | None, target: Path, progress: Progress = silent) -> Summary:
    """Write the data set `name` into `target`, over an earlier one. The same source gives the same bytes.

    Args:
        source: a folder with a copy of what is on the hub; None: the hub itself.

    Raises:
        WrongRequest: the name is unknown, or `source` is given for what is made here.
        DataError: the data cannot be had, are not what is published under that name, or cannot be written.
    """
    if name not in NAMES:
        raise WrongRequest(f"no data set {name!r}; there are: {', '.join(NAMES)}")
    if name == "addition":
        if source is not None:
            raise WrongRequest(f"--from {source}: addition is made here, not copied: leave --from out")
        from launch.data import addition

        return addition.prepare(target, progress)
    if name == "gsm8k":
        from launch.data import gsm8k

        return gsm8k.prepare(source, target, progress)
    from launch.data import dapo_math

    return dapo_math.prepare(source, target, progress)
