"""How far the quantized policy is from the trained one.

estimators.py   the figures, from the log-probabilities of the same tokens (torch alone)
measure.py      `ascend-quant mismatch`: a quantized engine samples, a BF16 engine scores and looks at each layer
prompts.py      what the engines are asked, built in (examples.py) or from a file; tokens.py turns it into token ids
engines.py      an engine in a process of its own; child.py is that process
watch.py        in the BF16 engine's workers: each layer's inputs; layer_errors.py: what quantization does to them
suggestion.py   the layers that stand out
report.py, plot.py   what the user sees
"""

from ascend_quant.mismatch.estimators import Mismatch, Weights, mismatch, sequence_weights

__all__ = ["Mismatch", "Weights", "mismatch", "sequence_weights"]
