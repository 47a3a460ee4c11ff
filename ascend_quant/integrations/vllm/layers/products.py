"""vLLM's kernels given to ascend_quant/kernels, for each backend that serves with them."""

from importlib import import_module

MODULES = {"cuda": "ascend_quant.integrations.vllm.layers.cuda_products"}  # imports Triton, as not every machine has it


def register_products(device_type: str) -> None:
    """Have the kernels of a device serve with vLLM's where they are meant to; harmless when repeated."""
    if device_type in MODULES:
        import_module(MODULES[device_type]).register()
