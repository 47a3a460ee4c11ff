"""Runs on a Ray cluster that is there already (`train --ray`), by Ray's Job API.

plan.py      what is submitted, from a recipe
cluster.py   the cluster over HTTP: its token and version, its jobs, their actors
nodes.py     whether its nodes have what the run needs, as look.py, a Ray job of ours, finds them
wheel.py     this project as a wheel, for nodes that do not have these sources
tail.py      a job's log while it is written
run.py       attempts, their record, and the exit code
"""
