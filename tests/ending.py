"""Whether a process that a test knows by its number has ended: gone, or waiting for its parent to collect it."""

import psutil

from ascend_quant.processes.tree import still_running


def ended_soon(pid: int, seconds: float = 30) -> bool:
    """Whether it ends within these seconds."""
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return True
    return not still_running([process], seconds)
