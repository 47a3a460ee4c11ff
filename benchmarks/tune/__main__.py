"""`python -m benchmarks.tune`."""

import typer

from benchmarks.tune.command import tune

typer.run(tune)
