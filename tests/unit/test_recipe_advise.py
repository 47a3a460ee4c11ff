"""`run.sh recipe advise`: what the estimate is given is what the recipe says."""

import json
import math

import pytest
from typer.testing import CliRunner

from ascend_quant.advise.workloads import Workload
from benchmarks.models import get_model
from launch.cli import app
from launch.recipes import Paths, RecipeError, load, names, resolve
from launch.recipes.command import device_of, workload_of
from launch.root import ROOT


def run(*arguments: str):
    return CliRunner().invoke(app, ["recipe", "advise", *arguments])


def test_a_recipe_of_npus():
    """As written in _qwen3-30b-a3b-math.yaml: 32 prompts of 8 samples for 16 / 4 replicas."""
    recipe = load("qwen3-30b-a3b-int8-grpo-a3")
    assert workload_of(recipe) == Workload(4, 64, 2048, 30720, memory=0.6, eager=True, limit=1024)
    assert workload_of(recipe, inputs=100, outputs=2000).outputs == 2000


@pytest.mark.parametrize("name", names())
def test_every_recipe_against_its_command(name):
    """The same numbers from the overrides that verl gets."""
    recipe = load(name)
    settings = dict(each.lstrip("+").split("=", 1) for each in resolve(recipe, Paths("m", "d", "o")).overrides)
    rollout = "actor_rollout_ref.rollout"
    devices = int(settings["trainer.nnodes"]) * int(settings["trainer.n_gpus_per_node"])
    replicas = devices // int(settings[f"{rollout}.tensor_model_parallel_size"])
    flying = int(settings["data.train_batch_size"]) * int(settings[f"{rollout}.n"])
    if settings.get("algorithm.filter_groups.enable") == "true":
        flying *= int(settings.get("algorithm.filter_groups.max_inflight_gen_batches", 1))
    found = workload_of(recipe)
    assert found.batch == math.ceil(flying / replicas)
    assert found.inputs + found.outputs == int(settings[f"{rollout}.max_model_len"])
    assert found.memory == float(settings[f"{rollout}.gpu_memory_utilization"])
    assert found.eager == (settings.get(f"{rollout}.enforce_eager") == "true")
    assert found.limit == int(settings.get(f"{rollout}.max_num_seqs", 256))
    assert found.expert_parallel == (settings[f"{rollout}.expert_parallel_size"] != "1")


def test_devices_are_those_in_the_names():
    for name in names():
        recipe = load(name)
        if recipe.stack == "cpu":
            with pytest.raises(RecipeError, match="give --device"):
                device_of(recipe)
            continue
        said = [part for part in ("a2", "a3", "h100", "h200") if name.endswith(part)]
        assert not said or device_of(recipe) == said[0].upper(), name


def test_what_is_printed(tmp_path):
    model = str(get_model("qwen3-30b-a3b").write_config(tmp_path))
    shown = run("qwen3-30b-a3b-int8-grpo-a3", "--model", model)
    assert shown.exit_code == 0, shown.output
    assert (
        "64 sequences of 2048 + 30720 tokens on 4 x A3" in shown.stdout and "no verdict without graphs" in shown.stdout
    )
    pages = [(ROOT / "docs" / page).read_text().splitlines() for page in ("advise.md", "advise.zh.md")]
    rows = {line.replace("┃", "│") for line in shown.stdout.splitlines()}
    for page in pages:
        said = [line for line in page if line.startswith("│")]
        assert len(said) == 6 and rows.issuperset(said)
    found = json.loads(run("qwen3-30b-a3b-int8-grpo-a3", "--model", model, "--launch-us", "5", "--json").stdout)
    assert {name: each["concurrent"] for name, each in found["rollouts"].items()} == {"bf16": 32, "int8": 41}
    assert found["workload"]["launch"] == pytest.approx(5e-6)
    assert "int8 pays" in found["verdicts"]["int8"]


def test_changes_and_another_device(tmp_path):
    model = str(get_model("qwen2.5-7b").write_config(tmp_path))
    options = ("--model", model, "--device", "h200", "--set", "rollout.n=16", "--out", "100", "--json")
    found = json.loads(run("qwen2.5-7b-int8-gsm8k-h100", *options).stdout)
    assert found["device"]["name"] == "H200" and found["workload"]["outputs"] == 100
    assert (
        found["workload"]["batch"] == workload_of(load("qwen2.5-7b-int8-gsm8k-h100", changes={"rollout.n": "16"})).batch
    )


def test_the_row_of_the_recipes_own_cache_is_named(tmp_path):
    model = str(get_model("qwen2.5-7b").write_config(tmp_path))
    shown = run("qwen2.5-7b-int8-kv8-dapo-h100", "--model", model, "--json")
    assert shown.exit_code == 0 and "'int8, int8 cache'" in shown.stderr
    assert "int8, int8 cache" in json.loads(shown.stdout)["rollouts"]
    assert "cache" not in run("qwen2.5-7b-int8-dapo-h100", "--model", model, "--json").stderr


def test_a_scheme_that_is_not_estimated_is_named(tmp_path):
    shown = run("qwen3-30b-a3b-int4", "--model", str(get_model("qwen3-30b-a3b").write_config(tmp_path)))
    assert shown.exit_code == 0 and "int4_g" in shown.stderr


BATCHES = "algorithm.filter_groups.max_inflight_gen_batches"


@pytest.mark.parametrize("value", ["null", "abc", ".nan", "-7", "0", "true", "1.5"])
@pytest.mark.parametrize(
    "key",
    [
        "data.train_batch_size",
        "actor_rollout_ref.rollout.data_parallel_size",
        "actor_rollout_ref.rollout.max_num_seqs",
        BATCHES,
    ],
)
def test_nothing_is_computed_of_what_is_no_count(key, value):
    given = {"verl.algorithm.filter_groups.enable": "true", f"verl.{BATCHES}": "2", f"verl.{key}": value}
    recipe = load("addition-int8", changes=given)
    with pytest.raises(RecipeError, match=f"verl: {key}: "):
        workload_of(recipe)


@pytest.mark.parametrize("arguments", [("qwen3-4b-fp7",), ("addition-int8",), ("qwen3-4b-fp8", "--model", "/nothing")])
def test_wrong_use_is_one_line(arguments):
    shown = run(*arguments)
    assert shown.exit_code == 2 and len(shown.stderr.splitlines()) == 1 and "Traceback" not in shown.output
