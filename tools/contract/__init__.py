"""Checks whether a release of another package still has the names that we use, without installing it.

sources.py   names, classes and signatures of an unpacked package, from its syntax
check.py     the tables of the integrations (contract.py) against such a package

Its command is `./run.sh lint --contract vllm==0.34.0`.
"""
