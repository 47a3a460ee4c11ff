"""Our attention backend for vLLM, registered in vLLM's backend registry; nothing of vLLM is replaced.

register.py    its place in the registry
int8_cache.py  keys and values in int8 with a scale a token and head: the backend, and what a layer computes
metadata.py    what the layers of a step share: which tokens are decodes, the plan of the decode kernel
"""
