"""RDMA adapters, and whether what NCCL loads for them at run time is here."""

import ctypes
from pathlib import Path

from launch.doctor.facts import Rdma

LIBRARY = "libibverbs.so.1"


def rdma(root: Path = Path("/"), library: str = LIBRARY) -> Rdma:
    """What there is of it."""
    return Rdma(
        adapters=names(root / "sys" / "class" / "infiniband"),
        devices=names(root / "dev" / "infiniband"),
        problem=why_not(library),
    )


def names(folder: Path) -> tuple[str, ...]:
    """What is in a folder; nothing where there is none."""
    return tuple(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else ()


def why_not(library: str) -> str | None:
    """Why a library cannot be loaded; None where it can."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return None
