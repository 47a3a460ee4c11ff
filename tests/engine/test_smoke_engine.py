"""`run.sh smoke` with a real engine: it passes as it stands, and a refit that went wrong does not pass.

The training part has two ways: the demo, which other tests run, and the recipe for devices, tried here on CPUs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_quant.selfcheck import engine, worker
from launch.smoke import models, training
from launch.smoke.child import Setting


def test_the_smoke_test_of_this_machine(tmp_path: Path):
    """As users call it, without the long training."""
    command = [sys.executable, "-m", "launch", "smoke", "--json", "-"]
    command += [word for name in ("operators", "refit", "generate") for word in ("--only", name)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    parts = {one["name"]: one for one in json.loads(done.stdout)["parts"]}
    assert {name: one["status"] for name, one in parts.items()} == dict.fromkeys(
        ("operators", "refit", "generate"), "ok"
    )
    refit = parts["refit"]["figures"]
    assert refit["receipt"]["digest"] == refit["expected_digest"] and refit["buckets"] > 1
    assert parts["generate"]["figures"]["other_than_before"] > 0, "both checkpoints answer alike: nothing is tried"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    models.write(folder)
    return [folder / "start", folder / "then"]


def test_one_wrong_number_in_a_refit_is_seen(checkpoints, monkeypatch):
    """The engine takes it, since it is finite; the digest that the oracle expects is another one."""
    right = worker.buckets

    def wrong(folder, limit):
        for bucket in right(folder, limit):
            for name, tensor in bucket:
                if name == "model.layers.1.mlp.down_proj.weight":
                    tensor[3, 5] = tensor[3, 5] * 1.5 + 0.25
            yield bucket

    monkeypatch.setattr(worker, "buckets", wrong)
    found = engine.check_engine(*checkpoints, graphs=False, memory=None)
    problems = found["refit"]["problems"]
    assert [one.split(":")[0] for one in problems] == ["digest the receipt's", "digest that of the bytes read back"]


@pytest.mark.timeout(1500)
def test_the_recipe_that_devices_train(tmp_path: Path, monkeypatch):
    """Its command on a machine without devices, up to a logged step."""
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    )
    setting = Setting("cpu", "none", tmp_path, 1)
    ended, metrics = training._on_devices(setting)
    assert ended.code == 0, ended.why()
    result = training._judged(setting, ended, metrics)
    assert result.status == "ok" and len(result.figures["receipts"]) == 1
