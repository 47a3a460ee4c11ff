"""`ascend-quant smoke`: test this installation on this device. Each probe compares with the oracle.

probes.py      type, list and execution of probes
results.py     the results: output lines and JSON file, also of `./run.sh smoke`
installed.py   versions, and whether the libraries of vLLM's compiled kernels exist
operators.py   a CPU's and a GPU's kernels on some shapes
npu/           the torch_npu operators that a refit and a rollout use
engine.py      a refitted vLLM engine, compared with a fresh one; sleep.py: twenty sleeps and refits
generation.py  a 7B model: its speed, its memory, its kernels on an NPU (kernels.py)
worker.py      in an engine's workers: parameters, refit in buckets, profiles
planted.py     in a trainer of verl: a NaN before the last weight sync

`./run.sh smoke` (launch/smoke) adds the doctor and three training steps, and runs probes in separate processes, since
an operator may end its process, or never return.
"""

SPOILT = "model.layers.0.mlp.up_proj.weight"  # the parameter that planted.py sets to NaN
