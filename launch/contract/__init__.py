"""Checks whether a release of another package still has the names that we use, without installing it.

sources.py   an unpacked package: names, classes and signatures, by its syntax alone
check.py     the tables of the integrations (contract.py) against such a package

Its command is `./run.sh lint --contract vllm==0.34.0`.
"""
