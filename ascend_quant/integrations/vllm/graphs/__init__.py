"""Our pass over the graphs that vLLM compiles: RMSNorm or SiLU is fused with the quantization after it.

passes.py   where vLLM takes a pass
fusion.py   what becomes of a graph
match.py    how a layer's computation is found in one
"""
