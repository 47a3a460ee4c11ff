"""The agent of a host: `python -m launch node` checks the host, runs Ray on it, and ends it."""
