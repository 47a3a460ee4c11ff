"""First contact with an Atlas A2 or A3: ./run.sh test npu-smoke [-- --out FILE], one JSON file to send back.

It runs in the user's own environment (CANN, torch, torch_npu; no pytest), ends within half an hour, and answers what
nobody has seen yet: each check proves or refutes a sentence of the README or docs, tells a fact, or says what it lacks.

__main__.py     the command: options, progress, exit code
claims.py       the sentences that are proved or refuted
checks.py       what a check is, the list of them, and how one is carried out
runner.py       all of them one after the other, in a process that is replaced when it dies or its device breaks
report.py       the JSON file and the table
tools.py        packages, programs, and commands in processes of their own
compare.py      what differs, and by how many units in the last place
data.py         weights and activations, made on the host
environment.py  versions, chip, operators
arithmetic.py   float32, integers, views: what our kernels rest on, and what is worth knowing
quantize.py     our kernels' codes, scales, digests and counts against the oracle
fused.py        single operators that a fused refit rests on
layout.py       FRACTAL_NZ: where each byte lies, the plain alias, addresses
products.py     npu_quant_matmul against the oracle
experts.py      npu_grouped_matmul and its fusions against the oracle
graphs.py       refits: addresses, and captured ACL graphs that must see the new weights
memory.py       what refits leave behind
collective.py   HCCL between two NPUs; ranks.py is what its processes do
cache.py        8-bit formats for a KV cache
profiles.py     waits, the AI CPU and kernels, by msprof; profiled.py is what it watches
engine.py       a vLLM engine: refits, graphs, sleep, a NaN; life.py and worker.py are its process
generation.py   tokens a second, beside BF16 and vllm-ascend's own W8A8; generating.py is one engine
training.py     verl, by ./run.sh train
clock.py        medians over rounds
speed.py        refits and products, beside a plain copy and beside BF16
"""
