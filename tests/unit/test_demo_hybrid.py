"""The demo's hybrid arm without verl: its option, its recipe, the file for FLASHRL_CONFIG, its part of the report."""

import json
import os
import sys
from pathlib import Path

import pytest
import yaml
from naming import line_naming
from typer.testing import CliRunner

from launch.cli import app
from launch.demo import DemoError, recipe, report, run, training
from launch.demo.run import table

CHOICES = recipe.Choices(("int8", "hybrid"), 2, "token", 3, "qwen2")
VLLM = "actor_rollout_ref.rollout.engine_kwargs.vllm"


@pytest.mark.parametrize(
    ("arms", "hybrid", "chosen"),
    [
        (None, False, ("bf16", "int8")),
        (None, True, ("hybrid",)),
        ("int8", True, ("int8", "hybrid")),
        ("int8,bf16", False, ("int8", "bf16")),
    ],
)
def test_hybrid_runs_alone_or_beside_the_arms_that_are_named(arms, hybrid, chosen):
    assert run.choices(arms, hybrid, 1, "token", 0, "qwen2").arms == chosen


def test_a_folder_with_an_earlier_hybrid_run_is_refused(tmp_path):
    (tmp_path / "hybrid").mkdir()
    with pytest.raises(run.OptionError, match=line_naming(tmp_path, "hybrid")):
        run.check_folder(tmp_path)


def test_the_command_line_knows_the_option():
    result = CliRunner().invoke(app, ["demo", "--hybrid", "--arms", "int8", "--steps", "0"])
    assert result.exit_code == 2 and result.stderr == "--steps 0: at least 1 is needed\n"


def values(arm, folder):
    lines = recipe.overrides(CHOICES, arm, folder, Path("/tmp/ray"))
    return {key: json.loads(value) for key, value in (line.removeprefix("++").split("=", 1) for line in lines)}


def test_hybrid_has_a_worker_for_each_replica_and_leaves_their_schemes_to_the_variable(tmp_path):
    hybrid, int8 = values("hybrid", tmp_path), values("int8", tmp_path)
    replicas = len(recipe.replica_schemes("hybrid"))
    assert hybrid["trainer.n_gpus_per_node"] == hybrid["ray_kwargs.ray_init.num_gpus"] == replicas == 2
    assert int8["trainer.n_gpus_per_node"] == int8["ray_kwargs.ray_init.num_gpus"] == 1
    assert hybrid[f"{VLLM}.quantization"] == "ascend_quant"
    assert not [key for key in hybrid if "hf_overrides" in key]
    same = {key for key in hybrid.keys() & int8.keys() if hybrid[key] == int8[key]}
    assert {key.rsplit(".", 1)[-1] for key in (hybrid.keys() | int8.keys()) - same} == {
        "n_gpus_per_node",
        "num_gpus",
        "ppo_micro_batch_size_per_gpu",
        "log_prob_micro_batch_size_per_gpu",
        "quant_method",
        "scheme",
        "dir",
        "default_local_dir",
    }


@pytest.mark.parametrize("arm", ["int8", "hybrid"])
def test_samples_divide_among_the_workers_and_into_micro_batches(arm, tmp_path):
    settings = values(arm, tmp_path)
    actor, rollout = "actor_rollout_ref.actor.ppo_", "actor_rollout_ref.rollout."
    workers, n = settings["trainer.n_gpus_per_node"], settings[f"{rollout}n"]
    mini_batch = n * settings[f"{actor}mini_batch_size"]
    assert mini_batch % (workers * settings[f"{actor}micro_batch_size_per_gpu"]) == 0
    step = n * settings["data.train_batch_size"]
    assert step % (workers * settings[f"{rollout}log_prob_micro_batch_size_per_gpu"]) == 0


def test_the_file_gives_each_replica_the_scheme_that_the_report_names(tmp_path):
    pytest.importorskip("pydantic", reason="ascend_quant reads FlashRL's files with it")
    from ascend_quant.flashrl.config import read

    recipe.write_flashrl_config(tmp_path / "flashrl.yaml")
    config = read(tmp_path / "flashrl.yaml")
    schemes = recipe.replica_schemes("hybrid")
    assert [config.for_replica(rank).function.scheme for rank in range(len(schemes))] == list(schemes)
    assert sorted(schemes) == ["bf16", "int8"]


@pytest.mark.parametrize("arm", ["hybrid", "int8"])
def test_verl_finds_the_file_in_its_environment(arm, tmp_path, monkeypatch):
    """A Python that stands in for verl writes down what it is given, and ends without a step."""
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!/bin/sh\nexec {sys.executable} -c \"import os; print('<', os.getenv('FLASHRL_CONFIG'))\"\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(training.sys, "executable", str(stand_in))
    monkeypatch.delenv("FLASHRL_CONFIG", raising=False)
    with pytest.raises(DemoError, match="code 0 after 0 of 2 steps"):
        training.train_arm(CHOICES, arm, tmp_path, lambda done: None)
    path = (tmp_path / arm / "verl.log").read_text().removeprefix("< ").strip()
    if arm == "hybrid":
        assert yaml.safe_load(Path(path).read_text()) == {"configs": [{"fn": "int8"}, {"fn": "bf16"}]}
    else:
        assert path == "None"
    assert os.environ.get("FLASHRL_CONFIG") is None


def metrics_line(step):
    data = {
        "critic/rewards/mean": 0.5,
        "rollout_corr/k3_kl": 2e-4,
        "rollout_corr/rollout_is_mean": 1.0,
        "rollout_corr/rollout_is_max": 1.5,
        "rollout_corr/rollout_is_eff_sample_size": 0.9,
        "timing_s/step": 2.0,
        "timing_s/update_weights": 0.1,
        "timing_s/gen": 1.0,
        "timing_s/update_actor": 0.5,
        "response_length/mean": 2.5,
        "perf/throughput": 320.0,
        "timing_per_token_ms/gen": 1.5625,
        "refit/tensors": 27,
        "refit/digest": 5 + step,
    }
    for rank in (0, 1):
        mismatch, refit = f"rollout_corr/replica{rank}", f"refit/replica{rank}"
        data |= {f"{mismatch}/k3_kl": 1e-4 * (rank + step), f"{mismatch}/ess": 0.8 + rank / 10}
        data |= {f"{mismatch}/samples": 128 + rank}
        data |= {f"{refit}/milliseconds": 10.0 * (rank + 1), f"{refit}/digest": 10 * rank + step}
    return {"step": step, "data": data}


@pytest.fixture
def finished(tmp_path):
    """The folder of a finished run of two steps, with hand-written metrics."""
    (tmp_path / "hybrid").mkdir()
    lines = [json.dumps(metrics_line(step)) + "\n" for step in (1, 2)]
    (tmp_path / "hybrid" / "metrics.jsonl").write_text("".join(lines))
    return tmp_path


def test_the_report_has_each_replica(finished):
    arm = report.arm_report("hybrid", finished / "hybrid" / "metrics.jsonl")
    assert (arm["name"], arm["scheme"]) == ("hybrid", "int8+bf16")
    assert arm["receipts"][0] == {"tensors": 27, "digest": 6}
    int8, bf16 = arm["replicas"]
    assert (int8["scheme"], bf16["scheme"]) == ("int8", "bf16")
    assert int8["receipts"] == [{"milliseconds": 10.0, "digest": step} for step in (1, 2)]
    record = {"step": 2, "samples": 129, "k3_kl": 1e-4 * 3, "ess": 0.9, "refit_seconds": 0.02}
    assert bf16["steps"][1] == pytest.approx(record)
    assert report.replica_summary(bf16) == pytest.approx({"k3_kl_mean": 2.5e-4, "ess_min": 0.9, "refit_ms_median": 20})


def test_a_replica_that_is_not_logged_is_named(finished):
    path = finished / "hybrid" / "metrics.jsonl"
    path.write_text(path.read_text().replace("replica1/ess", "replica2/ess"))
    with pytest.raises(DemoError, match=r"step 1 has no rollout_corr/replica1/ess"):
        report.arm_report("hybrid", path)


def test_table_and_plot_show_each_replica(finished):
    pytest.importorskip("matplotlib")
    from launch.demo.report import draw

    watched = {"hybrid": training.Watched(0, 75.4)}
    result = report.build_report(recipe.Choices(("hybrid",), 2, "token", 3, "qwen2"), finished, watched, 1.0)
    rows = list(zip(*(column.cells for column in table(result).columns), strict=True))
    assert rows == [
        ("hybrid", "0.500 -> 0.500", "2.00e-04", "0.9000", "100", "2.0", "320", "640", "75"),
        (" replica 0: int8", "", "1.50e-04", "0.8000", "10", "", "", "", ""),
        (" replica 1: bf16", "", "2.50e-04", "0.9000", "20", "", "", "", ""),
    ]
    draw(result, finished / "report.png")
    assert (finished / "report.png").read_bytes().startswith(b"\x89PNG")
