"""What an NVIDIA GPU can at most: the tuner's candidates must fit, and its floors come from here."""

SHARED = {(8, 0): 163 << 10, (9, 0): 227 << 10, (10, 0): 227 << 10}  # by compute capability
LESS_SHARED = 99 << 10  # of the rest (sm86, sm89, sm120)
PEAK = {"NVIDIA_H200": (4.3e12, 1.28e15), "NVIDIA_H100": (2.9e12, 1.28e15), "NVIDIA_A100": (1.7e12, 0.5e15)}


def shared_bytes(capability: tuple[int, int]) -> int:
    """Bytes of shared memory that a program may have."""
    return SHARED.get(capability, LESS_SHARED)


def least_seconds(gpu: str, moved: float, operations: float) -> float | None:
    """Seconds below which no kernel gets, for bytes of memory and int8 operations; None for GPUs not known here."""
    known = next((speeds for name, speeds in PEAK.items() if gpu.startswith(name)), None)
    return None if known is None else max(moved / known[0], operations / known[1])
