"""Time stamps of functions from outside, on modules made for it; and that the sync's targets are there."""

import asyncio
import importlib
import inspect
import json
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import stamped as left
from benchmarks import stamping
from benchmarks.stamping import Recorder, Target, Watched
from benchmarks.sync_stamps import CUDA, FOLDER, TARGETS, received_flat, tags
from launch.root import ROOT

MODULE = """
import asyncio, functools

def marked(function):
    @functools.wraps(function)
    def plain(*args, **kwargs):
        return function(*args, **kwargs)
    plain.mark = 7
    return plain

class Outer:
    async def run(self, times, fails=False):
        await asyncio.gather(*(self.step(one) for one in range(times)))
        await asyncio.to_thread(inner, 1)
        if fails:
            raise KeyError("planted")
        return times

    @marked
    async def step(self, one):
        await asyncio.sleep(0.002 * (one + 1))
        return inner(one)

    def made(self):
        self.socket = [3, 4]

def inner(value, tags=None):
    return value

number = 3
"""


class Clock:
    """A tick at each look."""

    def __init__(self):
        self.at = 0.0

    def __call__(self) -> float:
        self.at += 1.0
        return self.at


@pytest.fixture
def stamped(tmp_path, monkeypatch):
    """A module whose functions are stamped as it is imported; and what was written."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(stamping.atexit, "register", lambda function: None)
    name = f"fake_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    targets = [
        Target(name, "Outer.run", outermost=True, note=lambda result, args, kwargs: [result, *args[1:]]),
        Target(name, "Outer.step"),
        Target(name, "Outer.made", outermost=True, follow=watch),
        Target(name, "inner", note=tags),
        Target(name, "Outer.gone"),
        Target(name, "Away.run"),
        Target(name, "number"),
    ]
    recorder = Recorder(tmp_path / "stamps", targets, now=Clock())
    recorder.begin()
    yield importlib.import_module(name), lambda: (recorder.flush(), left.read(tmp_path / "stamps"))[1]
    del sys.modules[name]


def watch(recorder: Recorder, outer) -> None:
    outer.socket = Watched(recorder, outer.socket, {"pop": "takes one"})


def shown(stamp: left.Stamp) -> tuple:
    return stamp.name, [shown(one) for one in stamp.inside]


def test_calls_lie_in_those_that_they_happened_in(stamped):
    """In tasks that take turns, and in a thread that one of them starts."""
    module, written = stamped
    assert asyncio.run(module.Outer().run(2)) == 2
    stamps = written()
    (root,) = stamps.roots
    assert shown(root) == (
        "Outer.run",
        [("Outer.step", [("inner", [])]), ("Outer.step", [("inner", [])]), ("inner", [])],
    )
    assert root.note == [2, 2] and {one.note for one in root.named("inner")} == {"all"}
    assert all(outer.start < one.start < one.end < outer.end for outer in root.all() for one in outer.inside)
    assert root.process == str(os.getpid())
    assert module.Outer.step.mark == 7 and inspect.iscoroutinefunction(module.Outer.step)


def test_what_is_not_there_is_told(stamped):
    module, written = stamped
    stamps = written()
    assert {place.rpartition(":")[2] for place in stamps.missing} == {"Outer.gone", "Away.run", "number"}
    assert {place.rpartition(":")[2] for place in stamps.found} == {"Outer.run", "Outer.step", "Outer.made", "inner"}
    assert module.number == 3


def test_outside_of_the_outermost_nothing_is_stamped(stamped):
    module, written = stamped
    assert module.inner(5) == 5
    thread = threading.Thread(target=module.inner, args=(1,))
    thread.start()
    thread.join()
    assert written().roots == []


def test_a_call_that_fails_has_its_stamp_too(stamped):
    module, written = stamped
    with pytest.raises(KeyError, match="planted"):
        asyncio.run(module.Outer().run(1, fails=True))
    (root,) = written().roots
    assert root.note is None and len(root.inside) == 2


def test_methods_of_what_is_no_python_function_are_watched(stamped):
    module, written = stamped
    outer = module.Outer()
    outer.made()
    assert outer.socket.pop() == 4 and outer.socket.index(3) == 0
    assert [one.name for one in written().roots] == ["Outer.made", "takes one"]


def test_processes_that_are_started_with_it_are_stamped(tmp_path):
    """By the folder on PYTHONPATH alone, as verl's and vLLM's are."""
    package = tmp_path / "verl" / "trainer" / "ppo" / "v1"
    package.mkdir(parents=True)
    (tmp_path / "verl" / "__init__.py").touch()  # before one that is installed
    (package / "trainer_sync.py").write_text("class PPOTrainerSync:\n    def on_step_end(self): pass\n")
    code = "from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync as P; P().on_step_end()"
    path = os.pathsep.join(map(str, (ROOT / "benchmarks" / "stamps", tmp_path, ROOT)))
    for folder, names in ((tmp_path / "stamps", ["PPOTrainerSync.on_step_end"]), (tmp_path / "off", [])):
        variables = {"PYTHONPATH": path, **({FOLDER: str(folder)} if names else {})}
        subprocess.run([sys.executable, "-c", code], env={**os.environ, **variables}, cwd=tmp_path, check=True)
        assert [one.name for one in left.read(folder).roots] == names


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_syncs_targets_are_there(target):
    """In the versions that are installed here."""
    for needed in ("torch", "verl", "vllm"):
        pytest.importorskip(needed)
    if target.of == CUDA:
        pytest.skip("it is imported on GPUs alone")
    found = importlib.import_module(target.module)
    *owner, leaf = target.name.split(".")
    for name in owner:
        found = getattr(found, name)
    assert inspect.isfunction(vars(found)[leaf])


def test_bytes_of_a_gather_are_those_of_the_other_ranks(monkeypatch):
    distributed = pytest.importorskip("torch.distributed")
    monkeypatch.setattr(distributed, "get_world_size", lambda group: {"four": 4}[group])
    share = partial(SimpleNamespace, bytes=16)
    assert received_flat(None, (object(), share(group="four")), {}) == 3 * 16
    assert received_flat(None, (object(), share(group=None)), {}) == 0


def test_what_is_woken():
    assert tags(None, (object(),), {"tags": ["weights"]}) == "weights"
    assert tags(None, (object(), ["weights", "kv_cache"]), {}) == "weights,kv_cache"
    assert tags(None, (object(),), {"tags": None}) == "all"
    assert Path(ROOT, "benchmarks", "stamps", "sitecustomize.py").is_file()


def test_a_line_is_one_call(stamped):
    module, written = stamped
    asyncio.run(module.Outer().run(1))
    written()
    (file,) = (Path(module.__file__).parent / "stamps").iterdir()
    (line,) = (one for one in map(json.loads, file.read_text().splitlines()) if one.get("name") == "Outer.run")
    assert set(line) == {"id", "parent", "name", "start", "end", "note"} and line["parent"] is None
