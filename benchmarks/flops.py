"""Floating-point operations of a training step's update, counted from the model's shapes.

Counted is what the mathematics needs, as in the definition of MFU (PaLM, arXiv 2204.02311, appendix B): every weight
matrix once forward and twice backward, attention as a causal mask leaves it, nothing that is computed again by gradient
checkpointing. verl's own counter adds 6 x vocab x hidden a token for the embedding, which is a look-up and no product:
8 % more for Qwen2.5-7B, 28 % for 0.5B (whose tied matrix is a product once, as the head).
"""

from collections.abc import Iterable

from benchmarks.models import Model


def update_flops(model: Model, lengths: Iterable[int]) -> int:
    """Of one pass forward and backward over sequences of so many tokens each."""
    lengths = list(lengths)
    squares = sum(length * length for length in lengths)
    return 6 * weights_in_products(model) * sum(lengths) + 6 * model.layers * model.heads * model.head_dim * squares


def weights_in_products(model: Model) -> int:
    """Elements of the matrices that each token is multiplied with: of the experts, those that it is sent to."""
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    attention = model.hidden * (q + 2 * kv) + q * model.hidden
    if model.experts:
        mlp = model.hidden * model.experts + model.top_k * 3 * model.hidden * model.expert_width
    else:
        mlp = 3 * model.hidden * model.width
    return model.layers * (attention + mlp) + model.vocab * model.hidden
