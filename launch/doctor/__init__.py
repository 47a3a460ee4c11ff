"""`./run.sh doctor`: would a run work on these hosts? Static and quick: it starts no engine and changes nothing.

facts.py       what several checks read about the host, looked up once; drivers.py asks the drivers
checking.py    what a check finds, and the report
versions.py, devices.py, network.py, machine.py, run.py    the checks, by subject
examination.py the list of checks, for the doctor and for a host's part of a run
hosts.py       all hosts of an inventory: each examines itself, then they are compared

A check names in its docstring an issue of someone whom the problem has stopped. `./run.sh smoke` tests what needs a
running engine.
"""
