"""Read by every Python process that starts with this folder first on PYTHONPATH: vLLM's cache on a CPU is as if int8.

It stands before another `sitecustomize` of the environment, which is then not read.
"""

from benchmarks.emulated_cache import begin

begin()
