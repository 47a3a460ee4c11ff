"""Updates of a quantized KV cache in a refit: each part is a `refit.Check`, so `Refit` does not depend on it.

scales.py            static scales of an fp8 or int8 cache, which follow the weights
bounds.py            bounds of q, k and v from the weights, before a trainer has sent scales
smooth_attention.py  outlier key channels balanced against the queries (SmoothAttention)
"""
