"""`ascend-quant mismatch`: the distance between the quantized and the BF16 policy.

The metrics are those of integrations/verl/metrics/estimators.py.

measure.py      which engines sample and score, and the report that comes of it
prompts.py      what the engines are asked, built in or from a file, as token ids
engines.py      an engine in a process of its own
figures.py      KL, importance weights and standard errors, over all tokens and by position
watch.py        in the BF16 engine's workers: each layer's inputs; layer_errors.py: what quantization does to its output
report.py       the tables on a terminal
"""
