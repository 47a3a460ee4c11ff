"""In-place re-quantization of rollout weights for reinforcement learning of language models.

BF16 weights leave the trainer, arrive in the inference engine bucket by bucket, and are quantized straight into
resident buffers whose addresses never change. Importing this package needs torch alone.
"""

__version__ = "0.1.0"
