"""`./run.sh smoke`, `docker run IMAGE smoke`: test this installation; results are in one JSON file.

The doctor, the device's probes, and a few steps of GRPO with int8 rollouts: on a CPU the demo itself, elsewhere its
recipe on one device.

setting.py    what all parts share: stack, folder, the time that is left
parts.py      the parts in their order, and how an earlier start's file is gone on with
training.py   the steps, and the NaN after them
reading.py    what files say of an NPU, written into docs/ascend.md
"""
