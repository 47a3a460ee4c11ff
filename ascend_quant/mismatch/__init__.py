"""How far the quantized policy is from the trained one, by the figures of ascend_quant/estimators.py.

uncertainty.py  their standard errors; lengths.py: what importance weights leave of longer responses
measure.py      `ascend-quant mismatch`: a quantized engine samples, a BF16 engine scores and looks at each layer
settings.py     its options
prompts.py      what the engines are asked, built in (examples.py) or from a file; tokens.py turns it into token ids
engines.py      an engine in a process of its own; child.py is that process
watch.py        in the BF16 engine's workers: each layer's inputs; layer_errors.py: what quantization does to them;
                seen.py, channels.py: what is kept of it
layers.py       each layer's error beside that of a Gaussian one (gaussian.py)
culprits.py     what is to blame; suggestion.py: what `ignore` should name for it
cache_split.py  the KL with a quantized KV cache, by what it comes from and by position (positions.py);
                cache_verdict.py: the largest part, what to do; forcing.py: engines decode given tokens;
                emulated_cache.py, cache_rounding.py: the cache without an engine; cache_support.py: who has one
report.py, remarks.py, plot.py   what the user sees
"""

from ascend_quant.estimators import Mismatch, Weights, mismatch, sequence_weights

__all__ = ["Mismatch", "Weights", "mismatch", "sequence_weights"]
