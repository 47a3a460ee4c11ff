"""`ascend-quant mismatch`: the distance between the quantized and the BF16 policy.

The metrics are those of integrations/verl/metrics/estimators.py.

measure.py      the engines that sample and score, and the report
prompts.py      prompts, built in or from a file, as token ids
engines.py      an engine in a separate process
figures.py      KL, importance weights and standard errors, over all tokens and by position
watch.py        in the BF16 engine's workers: inputs of layers; layer_errors.py: quantization error of their outputs
report.py       the tables on a terminal
"""
