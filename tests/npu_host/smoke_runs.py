"""Dry runs of tests/npu_smoke on host memory, and stand-ins for what host memory has not: graphs and events."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from npu_smoke import graphs
from npu_smoke.__main__ import main
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


def run(file: Path, *only: str) -> tuple[int, dict]:
    """The exit code and the file of a dry run in this process."""
    chosen = ["--only", *only] if only else []
    code = main(["--small", "--here", "--out", str(file), *chosen])
    return code, json.loads(file.read_text())


def answered(content: dict, answer: str) -> set[str]:
    """The checks with this answer."""
    return {one["name"] for one in content["checks"] if one["answer"] == answer}


def by_name(content: dict) -> dict[str, dict]:
    return {one["name"]: one for one in content["checks"]}


class Recorded(TorchDispatchMode):
    """Stands in for a captured graph: the operators of a block, carried out again into the same tensors."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self):
        for func, args, kwargs, result in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_flatten(result)[0], tree_flatten(again)[0], strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class HostEvent:
    """Stands in for torch.npu.Event, by the host's clock."""

    def __init__(self, enable_timing):
        self.time = None

    def record(self):
        self.time = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return 1e3 * (end.time - self.time)


def with_graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As a fixture: graphs and events as if this were a device that has them."""

    @contextlib.contextmanager
    def graph(one):
        with one:
            yield

    monkeypatch.setattr(torch.npu, "NPUGraph", Recorded)
    monkeypatch.setattr(torch.npu, "graph", graph)
    monkeypatch.setattr(torch.npu, "Event", HostEvent)
    graphs._why_no_graphs.cache_clear()
    yield
    graphs._why_no_graphs.cache_clear()
