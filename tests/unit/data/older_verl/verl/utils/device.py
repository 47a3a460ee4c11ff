"""The device of this process: the host."""

from types import SimpleNamespace


def get_device_name() -> str:
    return "cpu"


def get_torch_device() -> SimpleNamespace:
    def nothing() -> None:
        pass

    return SimpleNamespace(synchronize=nothing, ipc_collect=nothing, empty_cache=nothing)
