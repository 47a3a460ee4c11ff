"""`./run.sh doctor`: would a run work on these hosts? Static and quick: it starts no engine and changes nothing.

Each subject has a file that gathers facts on a host and judges them by checks: devices.py (drivers.py reads the
drivers' tools), versions.py, network.py, machine.py, run.py. examination.py does so with all of them;
hosts.py asks all hosts of an inventory and compares them. What only a running engine can tell is `./run.sh smoke`.
"""
