"""`python -m launch` is the command line behind `run.sh`."""

import errno
import os
import sys

from ascend_quant.console import forget_impossible_width
from launch.root import absent

if said := absent():
    print(said, file=sys.stderr)
    sys.exit(2)

try:
    os.getcwd()
except FileNotFoundError:
    print("run.sh: the folder that you are in is no longer there: change to another", file=sys.stderr)
    sys.exit(2)

from launch.cli import app

forget_impossible_width()
try:
    app(prog_name="run.sh")
except OSError as error:
    if error.errno != errno.ENOSPC:
        raise
    print(f"run.sh: {error.filename or 'what it writes'}: {error.strerror}", file=sys.stderr)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer goes nowhere
    sys.exit(1)
