"""A quantized KV cache: int8 with a scale per token and head, or fp8 with scales that every refit updates.

options.py       what an engine's settings ask for, before a model is built
scales.py        the scales of an fp8 cache, written with every refit and after whatever resets them
key_balance.py   SmoothAttention: outlier channels of keys
attention/       the attention backend of the int8 cache, by vLLM's registry
"""
