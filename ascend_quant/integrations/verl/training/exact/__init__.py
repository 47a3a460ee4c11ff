"""Bitwise on-policy under verl: the actor computes the INT8 engine's policy, and the run verifies it.

settings.py   settings that qat=int8_exact requires
worker.py     the actor; in each update it counts the tokens whose log-probability differs from the engine's
trainer.py    the reaction to such tokens: a report, a probe, token weights, or the end of the run
probe.py      sequences computed by decode, prefill and the actor, to find the side at fault
"""
