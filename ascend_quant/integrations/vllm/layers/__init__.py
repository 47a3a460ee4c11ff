"""Layer methods of the vLLM plugin, and the GEMMs and attention that use vLLM's own kernels.

linear.py         quantized linear layers
moe.py            fused experts
plain.py          what stays in its dtype
mla.py            what vLLM derives from latent attention's weights, brought up to date in place
conv.py           the convolution of gated delta nets, packed where vLLM packs it for a CPU
cuda_products.py  the schemes' products by vLLM's CUDA kernels, registered with ascend_quant/kernels
exact_products.py attention and routing of an exact trainer by vLLM's own code, registered there too
"""

from importlib import import_module

from ascend_quant.integrations.vllm.layers import exact_products

MODULES = {"cuda": "ascend_quant.integrations.vllm.layers.cuda_products"}  # imports Triton, as not every machine has it


def register_products(device_type: str) -> None:
    """Register vLLM's kernels for a device where they are used; harmless when repeated."""
    if device_type in MODULES:
        import_module(MODULES[device_type]).register()
    exact_products.register()
