"""Benchmarks: what things cost, measured beside the alternatives in one run: ./run.sh bench, and docs/nvidia.md.

refit.py       weight syncs of real vLLM engines (engine.py, worker.py inside it) and the kernels alone (kernels.py,
               methods.py with the competitors, matrices.py)
rollout.py     tokens a second by scheme and KV cache; generation.py one engine, rollout_worker.py inside it
train.py       a recipe's training steps by stage, INT8 beside BF16; train_report.py
sync.py        a weight sync under verl by what is sent, beside the trainer or apart
               of both: train_options.py, train_run.py one training, train_files.py and train_reward.py what it reads
tune/          the autotuner of int8 kernels (`python -m benchmarks.tune`)
convert.py     checkpoints converted, beside a copy
study.py       does a policy with INT8 rollouts learn what one with BF16 rollouts learns?
models.py      shapes, names and configs of models; tensors.py their weights, as a trainer holds them
tasks.py       one measurement in a process of its own; timing.py samples and rotated order; report.py JSON and tables
measured.py    the rows of results/measured.csv, which the README and the pages quote; results/ has a page a visit
"""
