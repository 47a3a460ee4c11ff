"""A trainer whose forward computes the INT8 engine's policy bit for bit (the engine's option is `exact`).

    from ascend_quant.exact import apply_exact, log_probs_of
    print(apply_exact(model, tensor_parallel=2))
    log_probs_of(model(**packed).logits, labels, temperature=0.8)

Each layer of a transformers model uses the engine's own function in the forward pass, and transformers' gradients in
the backward pass (straight-through), since rounding has no useful gradient. Almost exact is not enough: through INT8
rounding, one differing last bit causes nearly the whole difference between an INT8 and a BF16 policy. So layers that
are not known to be exact are refused.

straight_through.py   the forward of one function with the backward of another
modules.py            replacement of a module's class in place, and tests of its own forward
linear.py             W8A8 linear layers, split as by the engine's tensor-parallel ranks
experts.py            routers and experts
elementwise.py        RMSNorm, SiLU * up, and the angles of rotary embeddings
packing.py            the sequences of a packed or padded micro-batch
attention.py          attention within each sequence with the engine's kernel, registered with transformers
log_probs.py          log-probabilities, computed as by the engine's sampler
apply.py              applies all of them to a model, or refuses it
counters.py           number of tokens that differ from the engine's, as float32 bits
stages.py             finds the first operation whose result differs
fingerprint.py        versions, device and switches that engine and trainer must share

Attention and routing are the engine's own functions, which its integration registers (kernels/engine_products.py).
"""

from ascend_quant.exact.apply import Applied, NotExact, apply_exact
from ascend_quant.exact.log_probs import log_probs_of

__all__ = ["Applied", "NotExact", "apply_exact", "log_probs_of"]
