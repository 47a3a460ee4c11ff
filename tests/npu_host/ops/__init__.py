"""Reference kernels of the NPU's operators, one file a family; importing this package registers them all."""

from npu_host.ops import attention, casts, grouped, matmul, quantize, routing, swiglu, vllm_ascend  # noqa: F401
