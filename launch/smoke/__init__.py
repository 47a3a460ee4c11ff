"""`./run.sh smoke`, `docker run IMAGE smoke`: does this installation work on this machine? One table, one JSON file.

run.py       the parts one after the other, and the file
result.py    what came of a part
child.py     a part's work in a process of its own, with a time limit: a crash is a result
contents.py  parts manifest and doctor: what is installed, what would stop a run
compute.py   parts operators, refit and generate: the device's kernels, a real engine
training.py  part train: a few steps of GRPO with int8 rollouts
models.py    the checkpoints of refit and generate
"""
