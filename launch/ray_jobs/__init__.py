"""Runs on a Ray cluster that already exists (`train --ray`), through Ray's Job API.

plan.py         what is submitted, from a recipe
cluster.py      the cluster over HTTP: its token and version, its jobs and their actors
sources.py      the working directory of its jobs: this project's packages travel with them
nodes.py        doctor's checks on each node; look.py is the Ray job that runs them there
run.py          attempts, their logs, their end
"""
