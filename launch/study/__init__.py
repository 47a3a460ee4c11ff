"""The study: at which learning rates does the policy that samples follow the policy that learns, and with which codes?

One real verl GRPO run for each cell of a grid: kinds of rollout, learning rates, seeds. A cell that has been trained is
kept, so a study may be stopped and gone on with, on this machine or another.
"""
