"""`python -m launch` is the command line behind `run.sh`."""

from launch.commands import app

app(prog_name="run.sh")
