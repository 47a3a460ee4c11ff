"""Data sets as verl reads them: `ascend-quant data NAME`, which `run.sh data` starts, too, writes parquet files.

    prepare("gsm8k", None, Path("data"))

published.py  GSM8K, DAPO-Math-17k and AIME-2024, from a local copy or the hub
addition.py   the demo's task, with a model
parquet.py    the files
rows.py       what a file that verl is to read lacks
"""

from pathlib import Path
from typing import Literal

Name = Literal["gsm8k", "dapo-math-17k", "addition"]  # each is written into a folder of its name


class DataError(RuntimeError):
    """Raised if data cannot be obtained or written, or differ from the published format; the message has one line."""


def prepare(name: Name, source: Path | None, target: Path) -> list[str]:
    """Write a data set into `target`, replacing an earlier one; return a description of what was written.

    The same source gives the same bytes.

    Args:
        name: the data set; dapo-math-17k is written with aime-2024, for validation.
        source: a folder with a copy of the hub's repository; None for the hub itself. Addition is generated here.

    Raises:
        DataError: the data cannot be obtained, differ from the published format, or cannot be written.
    """
    from ascend_quant.datasets import addition, published

    try:
        if name == "addition":
            return addition.addition(target)
        return (published.gsm8k if name == "gsm8k" else published.dapo_math)(source, target)
    except OSError as error:
        why = error.strerror or str(error)
        raise DataError(
            f"{target} cannot be written ({why}): free some space, or choose another folder with --to"
        ) from error
