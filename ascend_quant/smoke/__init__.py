"""`ascend-quant smoke`: test this installation on this device. Each probe compares with the oracle.

probes.py      what a probe is, the list of them, and how one is carried out
results.py     the results: output lines and JSON file, also of `./run.sh smoke`
installed.py   versions, and whether vLLM's compiled kernels find what they are linked with
operators.py   a CPU's and a GPU's kernels on some shapes
npu/           the operators of torch_npu that a refit and a rollout rest on
engine.py      a real vLLM engine is refitted, then compared with a fresh one; sleep.py: twenty sleeps and refits
generation.py  a whole model of 7B: its speed, its bytes, its kernels on an NPU (kernels.py)
worker.py      in an engine's workers: what it is made of, the refit in buckets, profiles
planted.py     in a trainer of verl's: the NaN that it sends last

`./run.sh smoke` (launch/smoke) adds the doctor and three training steps, and carries probes out in processes of
their own: an operator may end its process, or never return.
"""

SPOILT = "model.layers.0.mlp.up_proj.weight"  # the parameter in which planted.py puts a NaN
