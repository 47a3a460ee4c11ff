"""Our attention backend for vLLM, registered in vLLM's backend registry; nothing of vLLM is replaced.

register.py    registration
int8_cache.py  the backend: keys and values in int8 with a scale per token and head
metadata.py    metadata of a step, shared by all layers: decode tokens, the plan of the decode kernel
"""
