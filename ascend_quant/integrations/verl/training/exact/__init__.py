"""Bitwise on-policy under verl: the actor computes the INT8 engine's policy, and the run verifies it.

settings.py   what a run with qat=int8_exact must be
worker.py     the actor; in each update it counts the tokens that are not the engine's bits
trainer.py    what follows from such tokens: a word, a probe, token weights, or the end of the run
probe.py      sequences that the engine samples and prefills and the actor computes: which side is at fault
"""
