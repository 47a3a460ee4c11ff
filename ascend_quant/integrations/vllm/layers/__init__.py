"""Layer methods of the vLLM plugin, and the GEMMs and attention that use vLLM's own kernels.

linear.py         quantized linear layers
moe.py            fused experts
plain.py          layers that are not quantized
mla.py            tensors that vLLM derives from latent attention's weights, updated in place
conv.py           the convolution of gated delta nets, packed where vLLM packs it for a CPU
cuda_products.py  the schemes' GEMMs and fused MoE with vLLM's CUDA kernels, registered with ascend_quant/kernels
exact_products.py vLLM's attention and routing for an exact trainer, registered there too
"""

from importlib import import_module

from ascend_quant.integrations.vllm.layers import exact_products

MODULES = {"cuda": "ascend_quant.integrations.vllm.layers.cuda_products"}  # imports Triton, if used


def register_products(device_type: str) -> None:
    """Register vLLM's kernels for a device if it uses them; idempotent."""
    if device_type in MODULES:
        import_module(MODULES[device_type]).register()
    exact_products.register()
