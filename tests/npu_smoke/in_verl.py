"""Without IPC: imported by verl in each of its processes, where VERL_USE_EXTERNAL_MODULES names this module.

verl asks CANN's and the driver's versions whether devices share memory; here the answer is no, before anything of verl
has asked. The weights then go through the host's shared memory.
"""

import os

from verl.utils import device

device.is_support_ipc = lambda: False
print(f"npu-smoke: no IPC in process {os.getpid()}", flush=True)
