"""`./run.sh smoke`, `docker run IMAGE smoke`: does this installation work on this machine? One JSON file.

run.py    the doctor, the device's probes, three training steps, and the file
probes.py the probes of `ascend-quant smoke`, in processes that may end: a crash is a result
train.py  a few steps of GRPO with int8 rollouts
child.py  a command in a process of its own, with a time limit
"""
