"""Which versions are on this host, without importing any of them, and a digest of our own sources."""

import hashlib
from importlib.util import find_spec
from pathlib import Path

from launch.software import installed

PACKAGES = ("ray", "verl", "torch", "torch_npu", "vllm", "vllm_ascend", "transformers", "ascend_quant")
SOURCES = "ascend_quant sources"


def versions() -> dict[str, str]:
    """Versions by package, of Python too, and the digest of ascend_quant's sources; what is not installed is absent."""
    found = installed(PACKAGES)
    spec = find_spec("ascend_quant")
    if spec is not None and spec.origin is not None:
        found[SOURCES] = digest(Path(spec.origin).parent)
    return found


def digest(folder: Path) -> str:
    """Twelve hex digits that depend on the names and the bytes of all Python files under a folder."""
    whole = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        whole.update(f"{file.relative_to(folder)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return whole.hexdigest()[:12]


def skew(head: dict[str, str], other: dict[str, str]) -> list[str]:
    """What differs between two hosts: 'ray 2.60.0, the head has 2.59.0'."""
    names = [*head, *(name for name in other if name not in head)]
    return [
        f"{name} {other.get(name, 'missing')}, the head has {head.get(name, 'none')}"
        for name in names
        if head.get(name) != other.get(name)
    ]
