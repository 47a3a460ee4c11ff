"""A trainer whose forward computes the INT8 engine's policy bit for bit (the engine's option is `exact`).

    from ascend_quant.exact import apply_exact, log_probs_of
    print(apply_exact(model, tensor_parallel=2))
    log_probs_of(model(**packed).logits, labels, temperature=0.8)

Each piece of a transformers model computes forward with the engine's own function, and backward as transformers would
(straight-through): rounding has no useful gradient. Almost exact is not enough: through INT8 rounding, one differing
last bit causes nearly the whole difference between an INT8 and a BF16 policy, so whatever is not known to be exact is
refused by name.

straight_through.py   a forward of one function, a backward of another
modules.py            how a module's class is changed in place, and what is known of its own forward
linear.py             W8A8 linear layers, cut as the engine's tensor parallel ranks cut them
experts.py            routers and experts
elementwise.py        RMSNorm, SiLU * up, and the angles of rotary embeddings
packing.py            the sequences of a packed or padded micro-batch
attention.py          attention within each sequence by the engine's kernel, registered with transformers
log_probs.py          log-probabilities as the engine's sampler takes them
apply.py              all of them on a model, and what is refused
counters.py           how many tokens differ from the engine's, as float32 bits
stages.py             the first operation whose result differs
fingerprint.py        versions, device and switches that engine and trainer must share

Attention and routing are the engine's own functions, which its integration registers (kernels/engine_products.py).
"""

from ascend_quant.exact.apply import Applied, NotExact, apply_exact
from ascend_quant.exact.log_probs import log_probs_of

__all__ = ["Applied", "NotExact", "apply_exact", "log_probs_of"]
