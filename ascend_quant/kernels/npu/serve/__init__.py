"""NPU kernels for serving: linear.py has W8A8 linear layers, experts.py W8A8 experts (fused MoE)."""
