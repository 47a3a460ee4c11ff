"""A model or data that are not there: said before verl starts Ray, with the settings' names and values."""

import re

import pytest
from omegaconf import OmegaConf

from ascend_quant.integrations.verl import cpu_settings, inputs


@pytest.fixture(autouse=True)
def no_ray(monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cpu_settings, "CURRENT", str(tmp_path / "ray_current_cluster"))
    monkeypatch.chdir(tmp_path)


def config(model: str, train, validation):
    return OmegaConf.create(
        {
            "actor_rollout_ref": {"model": {"path": model}},
            "data": {"train_files": train, "val_files": validation, "custom_cls": {"path": None}},
            "ray_kwargs": {"ray_init": {"num_cpus": None}},
            "recipe": {"data": {"name": "addition"}},
        }
    )


def test_what_is_missing_is_named_with_the_command_that_writes_it(tmp_path):
    (tmp_path / "here.parquet").touch()
    with pytest.raises(inputs.InputError) as error:
        inputs.check(config("data/addition/start", ["here.parquet", "train.parquet"], "test.parquet"))
    named = re.findall(r"[\w.]+=[\w./]+", str(error.value))
    assert named == [
        "actor_rollout_ref.model.path=data/addition/start",
        "data.train_files=train.parquet",
        "data.val_files=test.parquet",
    ]
    assert "data addition" in str(error.value)


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-7B", ".", "hdfs://models/one"])
def test_a_hub_id_a_folder_and_an_address_pass(model: str):
    inputs.check(config(model, "hdfs://data/train.parquet", None))


def test_paths_of_another_machine_are_not_looked_for(monkeypatch):
    there = config("/not/here", "/nor/here", "/nor/here")
    inputs.check(OmegaConf.merge(there, {"ray_kwargs": {"ray_init": {"address": "192.0.2.1:6379"}}}))
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")
    inputs.check(there)
