"""Ascend NPUs: BF16 weights are quantized to int8 online and computed by vllm-ascend's own W8A8-dynamic schemes.

config.py    which layer gets which method
linear.py    linear layers (plain ones too), experts.py fused experts: vllm-ascend's methods and layouts
c8.py        its int8 KV cache, whose scales refits set; c8_probe.py tries heads, c8_refusals.py what has none
fused_norm.py  a pattern of its fusion of norms that it lacks; hooks.py where it comes in
refusals.py  settings of vllm-ascend that do not go with refits
compat.py    what differs between vllm-ascend versions

Refits are those of integrations/vllm, whose plugin selects this config on an NPU.
"""

# Among fewer, the graphs of vllm-ascend 0.10 gather tokens and do not quantize them (AllGatherCommImpl.permute)
RANKS_FOR_GRAPHS_0_10 = 16
