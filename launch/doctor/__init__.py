"""`./run.sh doctor`: would a run work on these hosts? Static and quick: it starts no engine and changes nothing.

Each subject has a file that gathers facts on a host and checks them: devices.py (drivers.py calls the drivers' tools),
versions.py, network.py, machine.py, run.py. examination.py runs all of them; hosts.py queries all hosts of an inventory
and compares them. `./run.sh smoke` tests what needs a running engine.
"""
