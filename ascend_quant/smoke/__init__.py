"""`ascend-quant smoke`: test this installation on this device. Each probe compares with the oracle.

setting.py     settings of all parts: stack, folder, remaining time
parts.py       the parts in their order, with continuation of an earlier run; probes run in processes of their own
               (__main__.py), since an operator may end its process, or never return
training.py    three training steps of verl, and a NaN after them, which planted.py sets in the trainer
probes.py      type, list and execution of probes
results.py     the results: output lines and JSON file; reading.py: results of NPUs, a row for each probe
installed.py   versions, and whether the libraries of vLLM's compiled kernels exist
operators.py   a CPU's and a GPU's kernels on some shapes
npu/           the torch_npu operators that a refit and a rollout use
engine.py      a refitted vLLM engine, compared with a fresh one; sleep.py: twenty sleeps and refits
generation.py  a 7B model: its speed, its memory, its kernels on an NPU (kernels.py)
worker.py      in an engine's workers: parameters, refit in buckets, profiles

`./run.sh smoke` adds the launcher's doctor.
"""

SPOILT = "model.layers.0.mlp.up_proj.weight"  # the parameter that planted.py sets to NaN
