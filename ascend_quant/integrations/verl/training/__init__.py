"""Changes to the actor's computation under verl: attention, log-probabilities, QAT, exact on-policy.

packed_attention.py     attention for packed sequences without a mask; attention_settings.py checks the settings
log_probs.py            log-probabilities of many rows at a time
qat.py                  the fake quantization that a run selects; qat_worker.py applies it to the actor
exact/                  an actor that computes the INT8 engine's policy bit for bit
effective_sample.py     a warning if truncated importance sampling has a small effective sample size
hooks.py                monkeypatches of verl's training engine
"""
