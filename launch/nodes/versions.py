"""Which versions are on this host, without importing any of them, and a digest of our own sources."""

from launch.software import installed, own_packages, sources

PACKAGES = ("ray", "verl", "torch", "torch_npu", "vllm", "vllm_ascend", "transformers", "ascend_quant")
SOURCES = "these sources"


def versions() -> dict[str, str]:
    """Versions by package, of Python too, and the digest of our own sources; what is not installed is absent."""
    return {**installed(PACKAGES), SOURCES: sources(own_packages())}


def skew(head: dict[str, str], other: dict[str, str]) -> list[str]:
    """What differs between two hosts: 'ray 2.60.0, the head has 2.59.0'."""
    names = [*head, *(name for name in other if name not in head)]
    return [
        f"{name} {other.get(name, 'missing')}, the head has {head.get(name, 'none')}"
        for name in names
        if head.get(name) != other.get(name)
    ]
