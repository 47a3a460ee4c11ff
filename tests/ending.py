"""Waits for the end of a process that a test knows by its number; a zombie counts as ended."""

import psutil

from ascend_quant.processes.tree import still_running


def ended_soon(pid: int, seconds: float = 30) -> bool:
    """Return whether a process ends within these seconds."""
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return True
    return not still_running([process], seconds)
