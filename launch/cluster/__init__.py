"""The control host of a run: it connects to the hosts, monitors them, stores logs, and ends the run."""
