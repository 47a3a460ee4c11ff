"""`./run.sh smoke`, `docker run IMAGE smoke`: test this installation; results are in one JSON file.

It runs the doctor, the device's probes, and a few steps of GRPO with int8 rollouts: the recipe of the demo's task, on
one device or on the CPU.

setting.py    settings of all parts: stack, folder, remaining time
parts.py      the parts in their order, and continuation of an earlier run
training.py   the training steps, and the NaN after them
reading.py    results of NPUs, a row for each probe
"""
