"""Does this installation compute what the oracle defines? Nothing here knows the answer but by the oracle.

operators.py   the device's kernels on a handful of shapes: `ascend-quant kernels DEVICE --check`
libraries.py   whether vLLM's compiled kernels find what they are linked with
given.py       what check-engine is given
engine.py      a real vLLM engine is refitted, then compared with a fresh one: `ascend-quant check-engine`
worker.py      in that engine's workers: what it is made of, and the refit in buckets
expected.py    the digest that a receipt must have, from the checkpoint's values alone

A test on small shapes and a small model takes a minute and says whether an image, a driver and a device go together.
"""
