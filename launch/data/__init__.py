"""Data sets as verl reads them: `./run.sh data NAME` from a local copy or the hub, to parquet files in one folder.

    prepare("gsm8k", None, Path("data")).lines()

gsm8k.py, dapo_math.py and addition.py say what each becomes; copies.py finds the files, tables.py reads and writes
them. The columns are those of verl's RLHFDataset, the sources those that verl's default reward knows (0.9.1 and older).
"""

from launch.data.errors import DataError
from launch.data.prepare import NAMES, prepare
from launch.data.summary import Summary

__all__ = ["NAMES", "DataError", "Summary", "prepare"]
