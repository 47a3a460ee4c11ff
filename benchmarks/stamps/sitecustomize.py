"""Read by every Python process that starts with this folder first on PYTHONPATH: its functions get time stamps.

It stands before another `sitecustomize` of the environment, which is then not read.
"""

from benchmarks.sync_stamps import begin

begin()
