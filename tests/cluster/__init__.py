"""Runs over several hosts, seen from outside: `./run.sh test cluster`, as root.

host.py            a simulated host: its own network, processes, names, shared memory, /tmp, /etc and sshd
first_process.py   its process 1
switch.py          what the hosts' network interfaces are plugged into
running.py         a command on a host, with its output and its time
keys.py            ssh keys and known hosts of all hosts
leftovers.py       what a run may not leave there, and not take away
launches.py        launches as users type them; launch_job.py and jobs/ put a small job in place of verl
tools.py           what the machine must have; installed when missing

The network exists inside namespaces only: no interface, address or route of this machine is touched, and nothing has
a name outside, so that any number of these groups can run side by side.
"""
