"""A quantized KV cache: int8 with a scale per token and head, or fp8 with scales that every refit updates.

options.py       the option kv_cache, read before a model is built
scales.py        the scales of an fp8 cache, written with every refit and whenever vLLM resets them
key_balance.py   SmoothAttention: outlier channels of keys
attention/       the attention backend of the int8 cache, registered with vLLM
"""
