"""The agent of a host: `python -m launch node` checks it, wires it, runs Ray on it and ends what it started."""
