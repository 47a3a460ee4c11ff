"""First contact with an Atlas A2 or A3: ./run.sh test npu-smoke [-- --json FILE], one JSON file to send back.

It runs in the user's own environment (CANN, torch, torch_npu; no pytest) and answers what nobody has seen yet.

__main__.py     the command: options, progress, exit code
checks.py       what a check is, the list of them, and how one is carried out
runner.py       all of them one after the other, in a process that is replaced when it dies or its device breaks
report.py       the JSON file and the table
compare.py      what differs, and by how many units in the last place
data.py         weights and activations, made on the host
environment.py  versions, chip, operators
arithmetic.py   float32, integers, views: what our kernels rest on, and what is worth knowing
quantize.py     our kernels' codes, scales, digests and counts against the oracle
layout.py       FRACTAL_NZ: where each byte lies, the plain alias, addresses
products.py     npu_quant_matmul against the oracle
experts.py      npu_grouped_matmul and its fusions against the oracle
graphs.py       refits: addresses, and captured ACL graphs that must see the new weights
clock.py        medians over rounds
speed.py        refits and products, beside a plain copy and beside BF16
"""
