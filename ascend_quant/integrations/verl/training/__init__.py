"""Changes to the actor's computation under verl: attention, log-probabilities, QAT, exact on-policy.

packed_attention.py     attention for packed sequences without a mask; attention_settings.py says which run can have it
log_probs.py            log-probabilities of many rows at a time
qat.py                  which fake quantization a run asks for; qat_worker.py gives it to the actor
exact/                  an actor that computes the INT8 engine's policy bit for bit
effective_sample.py     a warning where importance weights (truncated importance sampling) leave little of a batch
hooks.py                monkeypatches of verl's training engine
"""
