"""The data and the model of the recipes addition-*: what they name, and the same for every host that makes them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from data_cases import read
from naming import line_naming
from safetensors.torch import load_file

from ascend_quant.datasets import DataError, prepare
from ascend_quant.demo import training
from ascend_quant.demo.reward import compute_score
from ascend_quant.demo.task import build_model
from launch.recipes import load, paths_of


@pytest.fixture(scope="module", autouse=True)
def short():
    """A warm-up of a few updates, which teaches next to nothing."""
    with pytest.MonkeyPatch.context() as patch:
        change(patch, updates=5, band=(0, 1))
        yield


def change(patch: pytest.MonkeyPatch, **changes) -> None:
    """Another warm-up."""
    setup = training.DEMO
    patch.setattr(training, "DEMO", replace(setup, warm_up=replace(setup.warm_up, **changes)))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare("addition", None, folder)
    return folder


def test_the_recipe_finds_its_files(made: Path):
    recipe = load("addition-int8")
    for file in (recipe.data.train, recipe.data.validation):
        assert (made / file).is_file()
    assert (Path(paths_of(recipe, None, str(made), None).model) / "config.json").is_file()
    steps, batch = recipe.verl["trainer"]["total_training_steps"], recipe.verl["data"]["train_batch_size"]
    assert len(read(made / recipe.data.train)) == steps * batch, "one epoch is what the recipe trains"


def test_the_model_s_heads_are_served_on_npus(made: Path):
    """vLLM's Qwen2 divides the hidden size by the heads, whatever `head_dim` says."""
    config = json.loads((made / "addition/start/config.json").read_text())
    head = config["hidden_size"] // config["num_attention_heads"]
    assert head == config["head_dim"] and head in (64, 128, 192)
    demo = build_model("qwen2", seed=0)
    assert sum(one.numel() for one in demo.parameters()) == sum(
        tensor.numel() for tensor in load_file(made / "addition/start/model.safetensors").values()
    )


def test_every_answer_is_right(made: Path):
    rows = read(made / "addition/test.parquet")
    assert len(rows) == 100
    for row in rows:
        first, second = row["prompt"][0]["content"].removesuffix("=").split("+")
        answer = str(int(first) + int(second))
        assert compute_score(row["data_source"], answer, row["reward_model"]["ground_truth"]) == 1.0


def test_every_host_makes_the_same(made: Path, tmp_path: Path):
    prepare("addition", None, tmp_path)
    for file in ("train.parquet", "test.parquet", "start/model.safetensors"):
        assert (made / "addition" / file).read_bytes() == (tmp_path / "addition" / file).read_bytes(), file


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, full_disk):
    with full_disk(), pytest.raises(DataError, match=line_naming(tmp_path)):
        prepare("addition", None, tmp_path)
    assert list((tmp_path / "addition").iterdir()) == []


def test_a_warm_up_that_fails_is_one_line(tmp_path: Path, monkeypatch):
    change(monkeypatch, band=(0.99, 1))
    with pytest.raises(DataError, match=r"accuracy 0\.\d"):
        prepare("addition", None, tmp_path)
