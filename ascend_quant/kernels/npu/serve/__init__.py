"""Kernels that an engine computes with on NPUs: linear.py W8A8 linear layers, experts.py W8A8 experts (fused MoE)."""
