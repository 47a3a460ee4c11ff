"""Probes of an Atlas A2 or A3: whether torch_npu's operators give the oracle's bytes, and how fast they are.

data.py       weights and activations, generated on the host
operators.py  results of ascend_quant.kernels.npu: rounding, layers, experts
graphs.py     refits: addresses, memory, and captured ACL graphs that must see new weights and scales of a cache (C8)
speed.py      a refit compared with a plain copy, and per call
"""
