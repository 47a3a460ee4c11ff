"""Option exact: a token's log-probability has the same bits in decode, in prefill and in a trainer.

install.py     ops that the trainer shares, and refusals
attention.py   sums over a token's keys in one order
log_probs.py   torch's log_softmax, also in the second model runner
hooks.py       monkeypatches of vLLM for all of this
"""
