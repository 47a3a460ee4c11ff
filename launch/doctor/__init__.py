"""`./run.sh doctor`: would a run work on these hosts? Static and quick: it starts no engine and changes nothing.

Each subject has a file with its checks: versions.py, devices.py (drivers.py calls the drivers' tools), network.py,
machine.py, run.py. facts.py has what several of them read. examination.py runs them, for the doctor and for a host's
part of a run; hosts.py queries all hosts of an inventory and compares them. `./run.sh smoke` tests what needs a running
engine.
"""
