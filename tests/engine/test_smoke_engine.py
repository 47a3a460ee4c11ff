"""`run.sh smoke` with a real engine: it passes as it stands, and a refit that went wrong does not pass.

tests/images runs all of it, with training.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import addition_start
import pytest
import torch
from naming import has_line_naming
from safetensors.torch import load_file, save_file

from ascend_quant.refit import RefitError
from ascend_quant.smoke import SPOILT as NAN
from ascend_quant.smoke import engine, generation, worker
from ascend_quant.smoke.probes import On
from ascend_quant.smoke.results import OK
from launch.plan.job import metrics_in
from launch.smoke.setting import Setting
from launch.smoke.training import command_of, judged, refused

SPOILT = "model.layers.1.mlp.down_proj.weight"


def test_the_smoke_test_of_this_machine(tmp_path: Path):
    """As users call it, without training."""
    command = [sys.executable, "-m", "launch", "smoke", "--json"]
    command += [word for name in ("libraries", "engine") for word in ("--only", name)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    found = {one["name"]: one for one in json.loads(done.stdout)["probes"]}
    assert {name: one["status"] for name, one in found.items()} == {"libraries": "ok", "engine.refit": "ok"}
    refit = found["engine.refit"]["values"]
    assert refit["digest"] == refit["expected digest"] and refit["buckets"] > 1
    assert refit["other answers than before"] > 0, "both checkpoints answer alike: nothing is tried"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> tuple[Path, Path]:
    return engine.write_models(tmp_path_factory.mktemp("models"))


def test_one_wrong_number_in_a_refit_is_seen(checkpoints, monkeypatch):
    """The engine takes it, since it is finite; the digest that the oracle expects is another one."""
    right = worker.buckets

    def wrong(tensors, limit):
        for bucket in right(tensors, limit):
            for name, tensor in bucket:
                if name == SPOILT:
                    tensor[3, 5] = tensor[3, 5] * 1.5 + 0.25
            yield bucket

    monkeypatch.setattr(worker, "buckets", wrong)
    found = engine.refitted(On(torch.device("cpu"), checkpoints=checkpoints))
    receipt, read_back = (one.split(":")[0] for one in found.problems[:2])
    assert has_line_naming(receipt, "digest … receipt's") and has_line_naming(read_back, "digest … read back")


def test_a_checkpoint_that_lacks_a_tensor_is_told_with_its_name(checkpoints, tmp_path):
    start, then = checkpoints
    shutil.copytree(then, tmp_path / "then")
    (file,) = (tmp_path / "then").glob("*.safetensors")
    state = load_file(file)
    del state[SPOILT]
    save_file(state, file)
    with pytest.raises(RefitError, match=SPOILT.replace(".", r"\.")):
        engine.refitted(On(torch.device("cpu"), checkpoints=(start, tmp_path / "then")))


def test_the_recipe_that_devices_train(tmp_path: Path):
    """Its command, on a machine without devices: verl takes it. Two hosts train that recipe in tests/cluster."""
    addition_start.write(tmp_path / "data", 64)  # two steps of 32
    command = command_of(Setting("cpu", "none", tmp_path, 1), str(tmp_path / "data"), tmp_path / "out")
    settings = command.index("--")
    command = [*command[:settings], "--dry-run", *command[settings:]]
    planned = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert planned.returncode == 0, planned.stdout[-3000:] + planned.stderr[-3000:]
    assert "trainer.total_training_steps=2" in planned.stdout


@pytest.mark.long("ascend_quant/smoke", "launch/smoke")
def test_verl_refuses_the_nan_that_its_last_step_sends(tmp_path: Path):
    """Here on CPUs, where an engine neither sleeps nor captures graphs."""
    addition_start.write(tmp_path / "data", 64)
    setting, out = Setting("cpu", "none", tmp_path, 1), tmp_path / "out"
    ended = setting.run(command_of(setting, str(tmp_path / "data"), out), "train", 500)
    metrics = metrics_in(out)
    trained = judged(setting, ended, metrics)
    found = refused(setting, ended, trained)
    assert (trained.values["steps"], found.status) == (1, OK), f"{trained}\n{found}"
    assert trained.values["receipts"][0]["proved"] > 0 and NAN in found.values["said"]


@pytest.mark.parametrize("scheme", ["bf16", "int8"])
def test_a_model_with_random_weights_tells_its_speed(scheme):
    seen = generation.generation(On(torch.device("cpu"), small=True), scheme)
    assert not seen.problems and all(rate > 0 for rate in seen.values["tokens/s by batch"].values())
    assert seen.values["bytes of weights"] > 0
