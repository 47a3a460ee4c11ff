"""Probes of an Atlas A2 or A3: whether torch_npu's operators give the oracle's bytes, and how fast they are.

data.py       weights and activations, made on the host
operators.py  what ascend_quant.kernels.npu writes and counts; rounding, layers, experts
graphs.py     refits: addresses, memory, and captured ACL graphs that must see new weights and scales of a cache (C8)
speed.py      a refit beside a plain copy, and call by call
"""
