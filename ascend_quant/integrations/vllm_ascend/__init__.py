"""Ascend NPUs: BF16 weights are quantized to int8 online and computed by vllm-ascend's own W8A8-dynamic schemes.

config.py    the quantization config: the method of each layer
linear.py    linear layers, quantized or not; experts.py fused experts: vllm-ascend's methods and layouts
c8.py        its int8 KV cache, whose scales refits update; c8_probe.py tests head counts, c8_refusals.py has refusals
fused_norm.py  a pattern that its norm fusion lacks, installed by hooks.py
refusals.py  settings of vllm-ascend that are incompatible with refits
compat.py    differences between vllm-ascend versions

Refits are those of integrations/vllm, whose plugin selects this config on an NPU.
"""

# With fewer ranks, the graphs of vllm-ascend 0.10 gather tokens without quantizing them (AllGatherCommImpl.permute).
RANKS_FOR_GRAPHS_0_10 = 16
