"""Our pass over the graphs that vLLM compiles: RMSNorm or SiLU is fused with the quantization after it.

passes.py   registration of the pass with vLLM
fusion.py   the pass
match.py    pattern matching of a layer's computation in a graph
"""
