"""In-place re-quantization of rollout weights for reinforcement learning of language models.

The trainer sends BF16 weights to the inference engine in buckets, and a refit quantizes them directly into resident
buffers whose addresses never change. Importing this package needs only torch.
"""

__version__ = "0.1.0"
