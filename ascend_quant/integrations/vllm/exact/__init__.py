"""Option exact: a token's log-probability has the same bits in decode, in prefill and in a trainer.

install.py     ops that the trainer has too, and what is refused
attention.py   sums over a token's keys in one order
log_probs.py   log_softmax by torch, in the second model runner too
hooks.py       monkeypatches of vLLM for all of this
"""
