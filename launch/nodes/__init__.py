"""A host's part of a run: `python -m launch node` checks the host, runs Ray on it, and ends what it started."""
