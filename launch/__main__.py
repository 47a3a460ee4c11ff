"""`python -m launch` is the command line behind `run.sh`."""

import sys

from launch.root import absent

if said := absent():
    print(said, file=sys.stderr)
    sys.exit(2)

from launch.cli import app

app(prog_name="run.sh")
