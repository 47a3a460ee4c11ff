"""`python -m launch node`: one host's part of a run. Its plan comes as a line of JSON on stdin; people run `train`."""

import typer


def node() -> None:
    """One host's part of a run, told what to do on stdin. Started by train on each host."""
    from launch.nodes.command import main

    raise typer.Exit(main())
