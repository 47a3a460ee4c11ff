"""The stages of a start add up, and name what they cannot account for."""

import pytest

pytest.importorskip("vllm", reason="the engine's own times are read from it")

import sys
from types import SimpleNamespace

from ascend_quant.integrations.verl.metrics.start_up import STARTED, StartUp, began_here
from ascend_quant.integrations.vllm import hooks, start_up
from ascend_quant.integrations.wrapping import install
from launch.nodes import head


def test_stages_add_up_from_the_launchers_start_to_the_last_mark():
    assert head.STARTED == STARTED
    moments = iter([1030.0, 1050.0, 1090.0, 1200.0])
    stages = StartUp({STARTED: "1000.0,1012.5"}, lambda: next(moments))
    stages.mark("models", {"actor": 12.0})
    stages.mark("engines", {"weights": 10.0, "torch.compile": 20.0})
    stages.mark("models")  # again: nothing
    assert stages.stages == {"ray cluster": 12.5, "driver": 17.5, "models": 20.0, "engines": 40.0}
    assert stages.inside["models"] == {"actor": 12.0, "other": 8.0} and stages.inside["engines"]["other"] == 10.0
    assert stages.total == 90.0 and len(stages.table().splitlines()) == 1 + 10
    shown = {"ray_cluster": 12.5, "models": 20.0, "engines": 40.0, "engines/torch.compile": 20.0, "total": 90.0}
    assert stages.metrics() == {f"start_up/{name}": seconds for name, seconds in shown.items()}


def test_without_a_launcher_the_run_begins_with_the_driver_or_now(monkeypatch):
    assert StartUp({}, lambda: 50.0).stages == {}
    monkeypatch.setenv(STARTED, "")  # so that it is as before when the test has ended
    monkeypatch.delenv(STARTED)
    began_here()
    assert list(StartUp().stages) == ["driver"] and 0 <= StartUp().total < 60


def test_an_engines_parts(monkeypatch):
    class Worker:
        def determine_available_memory(self):
            return 7

        def compile_or_warm_up_model(self):
            return "warm"

    monkeypatch.setitem(sys.modules, "vllm.v1.worker.gpu_worker", SimpleNamespace(Worker=Worker))
    monkeypatch.setattr(start_up, "_seconds", {})
    install(hooks.WITH_FIRST_MODEL)
    timed = Worker.determine_available_memory
    install(hooks.WITH_FIRST_MODEL)
    assert Worker.determine_available_memory is timed
    assert (Worker().determine_available_memory(), Worker().compile_or_warm_up_model()) == (7, "warm")
    assert set(start_up.seconds_of(None)) == {"trial run", "graphs and warm-up"}
    start_up._seconds.update({"trial run": 5.0, "graphs and warm-up": 9.0, "weights": 1.0})
    found = start_up.seconds_of(SimpleNamespace(compilation_time=6.0))
    assert found == {"weights": 1.0, "torch.compile": 6.0, "trial run": 0.0, "graphs and warm-up": 8.0}
