"""Probes of an Atlas A2 or A3: do torch_npu's operators give the definition's bytes, and how fast are they?

data.py      weights and activations, made on the host
codes.py     what ascend_quant.kernels.npu writes and counts, and how activations are rounded
products.py  linear layers and experts
graphs.py    refits: addresses, memory, and captured ACL graphs that must see the new weights
kv_cache.py  vllm-ascend's int8 cache of keys and values (C8)
speed.py     a refit beside a plain copy, a rollout beside BF16
"""
