"""Layers that keep their dtype wherever weights are quantized: in engines, in training and in checkpoints.

Beside these: embeddings, norms and language-model heads, which each of them knows by other means than a name.
"""

ROUTERS = ("gate", "router", "shared_expert_gate")  # the last part of a layer's name
BUILT_PLAIN = (
    "eh_proj",
    "indexer.wk",
    "indexer.weights_proj",
)  # the end of one: vLLM builds these without quantization
