"""Runs on a Ray cluster that already exists (`train --ray`), through Ray's Job API.

plan.py         the plan of a run: the job that is submitted, from a recipe
cluster.py      the client of the cluster: its token and version, its jobs and their actors
sources.py      the working directory of the jobs, with this project's packages
nodes.py        doctor's checks on each node; look.py is the Ray job that runs them
run.py          the attempts of a run, their logs and their outcomes
"""
