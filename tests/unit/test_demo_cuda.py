"""The demo on a GPU, without one: its options, arms, recipe, warm-up and report."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launch.cli import app
from launch.demo import recipe, report, run, training
from launch.demo.recipe import SETUPS, WarmUp
from launch.demo.run import table

torch = pytest.importorskip("torch")
ARMS = ("bf16", "int8", "fp8", "int8-uncorrected")
CHOICES = recipe.Choices(ARMS, 2, "token", 3, "qwen2", "cuda")
ROLLOUT = "actor_rollout_ref.rollout"


def values(arm: str, folder: Path) -> dict:
    lines = recipe.overrides(CHOICES, arm, folder, Path("/tmp/ray"))
    return {key: json.loads(value) for key, value in (line.removeprefix("++").split("=", 1) for line in lines)}


def test_the_device_has_arms_steps_and_a_model_of_its_own():
    chosen = run.choices(None, False, None, "token", 0, "qwen2", "cuda")
    assert chosen.arms == ARMS and chosen.steps == recipe.load_recipe("demo-cuda")["steps"]
    assert run.choices(None, False, None, "token", 0, "qwen2").arms == ("bf16", "int8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "tpu"], "--device 'tpu': choose from cpu, cuda"),
        (["--device", "cuda", "--hybrid"], "--hybrid: has two replicas on CPUs"),
        (["--device", "cuda", "--model", "qwen3-moe"], "--model 'qwen3-moe': choose from qwen2"),
    ],
)
def test_bad_options_give_one_line(arguments, said):
    result = CliRunner().invoke(app, ["demo", *arguments])
    assert result.exit_code == 2 and said in result.stderr and result.stderr.count("\n") == 1


def test_without_a_gpu_it_ends_with_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(app, ["demo", "--device", "cuda", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert "--device cuda" in result.stderr and torch.__version__ in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_cpu_is_not_what_an_image_for_gpus_computes_on(tmp_path):
    result = CliRunner(env={"ASCEND_QUANT_STACK": "cuda13"}).invoke(app, ["demo", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and "--device cuda" in result.stderr


@pytest.mark.parametrize(("capability", "left"), [((8, 0), ("bf16", "int8", "int8-uncorrected")), ((9, 0), ARMS)])
def test_fp8_needs_fp8_units(monkeypatch, capability, left):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    chosen, line = run.on_device(CHOICES, asked=False)
    assert chosen.arms == left
    assert (line is None) == (left == ARMS)
    if left != ARMS:
        assert "fp8" in line and "A GPU" in line and "\n" not in line
        with pytest.raises(run.OptionError, match=r"fp8.*A GPU.*sm80"):
            run.on_device(CHOICES, asked=True)


def test_without_correction_nothing_but_the_weights_is_missing(tmp_path):
    plain, bare = values("int8", tmp_path), values("int8-uncorrected", tmp_path)
    changed = {key for key in plain if plain[key] != bare[key]}
    correction = "algorithm.rollout_correction"
    assert changed == {f"{correction}.rollout_is", "hydra.run.dir", "trainer.default_local_dir"}
    assert (plain[f"{correction}.rollout_is"], bare[f"{correction}.rollout_is"]) == ("token", None)
    assert recipe.replica_schemes("int8-uncorrected") == ("int8",)


def test_verl_computes_no_weights_for_it_and_logs_the_mismatch():
    """verl's own function, with the arm's settings over verl's defaults: nothing is weighted, nothing is masked."""
    helper = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper")
    from omegaconf import OmegaConf
    from verl.protocol import DataProto

    defaults = Path(helper.__file__).parents[1] / "config" / "algorithm" / "rollout_correction.yaml"
    settings = OmegaConf.load(defaults)
    for key, value in values("int8-uncorrected", Path("/out")).items():
        if key.startswith("algorithm.rollout_correction."):
            settings[key.rpartition(".")[2]] = value
    assert settings.bypass_mode is False, "the old policy's log-probabilities are then the trainer's own"
    batch = {
        "old_log_probs": torch.tensor([[-0.5, -1.0, -7.0]]),
        "rollout_log_probs": torch.tensor([[-0.25, -1.5, -0.01]]),
        "response_mask": torch.tensor([[1, 1, 1]]),
    }
    data, metrics = helper.compute_rollout_correction_and_add_to_batch(DataProto.from_dict(dict(batch)), settings)
    assert "rollout_is_weights" not in data.batch.keys()  # noqa: SIM118  (a TensorDict iterates over its rows)
    assert torch.equal(data.batch["response_mask"], batch["response_mask"])
    ratio = torch.tensor([-0.25, 0.5, -6.99])
    assert metrics["rollout_corr/k3_kl"] == pytest.approx((ratio.exp() - ratio - 1).mean().item(), rel=1e-4)
    assert not [name for name in metrics if name.startswith("rollout_corr/rollout_is")]


@pytest.mark.parametrize("device", SETUPS)
def test_the_model_holds_what_its_recipe_asks(device):
    setup, verl = SETUPS[device], recipe.load_recipe(SETUPS[device].recipe)["verl"]
    rollout, data = verl["actor_rollout_ref"]["rollout"], verl["data"]
    assert data["max_prompt_length"] + data["max_response_length"] <= rollout["max_model_len"]
    assert rollout["max_model_len"] <= setup.shape["max_position_embeddings"]
    assert rollout["max_num_seqs"] >= data["train_batch_size"] * rollout["n"], "all samples of a step at once"
    assert data["train_batch_size"] % verl["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"] == 0


def test_the_gpus_model_is_of_50_to_300_million_parameters_and_fits_its_kernels():
    pytest.importorskip("transformers")
    from launch.demo.model import build_model

    setup = SETUPS["cuda"]
    with torch.device("meta"):
        model = build_model("qwen2", 0, setup.shape, setup.task.alphabet)
    assert 50e6 < sum(one.numel() for one in model.parameters()) < 300e6
    assert model.config.vocab_size == 64
    assert setup.shape["head_dim"] in (64, 128)
    matrices = [one for name, one in model.named_parameters() if one.dim() == 2 and ".layers." in name]
    assert len(matrices) == 7 * setup.shape["num_hidden_layers"]
    assert all(size % 128 == 0 for one in matrices for size in one.shape), "whole tiles, and blocks of fp8_block"


def test_the_learning_rate_rises_and_falls():
    from launch.demo.warmup import learning_rate

    plan = WarmUp(longest=500, fall=200, batch=1, learning_rate=2.0, ramp=100, band=(0, 1), seconds=1)
    rates = [learning_rate(update, None if update < 300 else 300, plan) for update in range(500)]
    assert rates[:100] == pytest.approx([2.0 * update / 100 for update in range(1, 101)])
    assert set(rates[100:301]) == {2.0}
    assert rates[301:] == sorted(rates[301:], reverse=True) and rates[400] == pytest.approx(2.0 * (1 + 0.05) / 2)
    assert rates[-1] == pytest.approx(2.0 * 0.05, rel=0.1)


def test_a_warm_up_that_takes_too_long_is_refused():
    pytest.importorskip("transformers")
    from launch.demo import DemoError
    from launch.demo.model import TINY, build_model
    from launch.demo.warmup import encode, imitate_teacher

    setup = SETUPS["cpu"]
    plan = replace(setup.warm_up, fall=50, batch=4, seconds=0.0)
    with pytest.raises(DemoError, match="made 1 updates in 0 s"):
        exam = encode([("7+5=", "12")], setup.task)
        imitate_teacher(build_model("qwen2", 0, TINY), setup.task, plan, 0, exam, lambda done: None)


@pytest.mark.parametrize(("marks", "longest", "updates"), [((0.1, 0.97, 0.98), 50, 9 + 4), ((0.1, 0.2), 7, 7 + 4)])
def test_a_warm_up_ends_some_updates_after_the_exam_is_passed(monkeypatch, marks, longest, updates):
    pytest.importorskip("transformers")
    from launch.demo import warmup
    from launch.demo.model import build_model

    done, marked = [], iter(marks)
    monkeypatch.setattr(warmup, "LOOK_EVERY", 3)
    monkeypatch.setattr(warmup, "likeliest_accuracy", lambda model, exam: next(marked))
    setup = SETUPS["cpu"]
    plan = replace(setup.warm_up, longest=longest, fall=4, batch=2)
    exam = warmup.encode([("7+5=", "12")], setup.task)
    warmup.imitate_teacher(build_model("qwen2", 0), setup.task, plan, 0, exam, done.append)
    assert done == list(range(1, updates + 1))


def test_the_likeliest_answers_are_counted_whole():
    pytest.importorskip("transformers")
    from launch.demo.model import build_model
    from launch.demo.warmup import encode, likeliest_accuracy

    task, model = SETUPS["cpu"].task, build_model("qwen2", 0)
    tokens, labels = encode([("7+5=", "12"), ("3+4=", "7")], task)
    with torch.no_grad():
        said = model(input_ids=tokens).logits.argmax(-1)
    own = labels.clone()  # what the model itself would say, at one place of the second row something else
    own[:, 1:][labels[:, 1:] != -100] = said[:, :-1][labels[:, 1:] != -100]
    assert likeliest_accuracy(model, (tokens, own)) == 1.0
    own[1, 4] = (own[1, 4] + 1) % model.config.vocab_size
    assert likeliest_accuracy(model, (tokens, own)) == 0.5


def metrics_line(step: int, weights: bool) -> str:
    data = {
        "critic/rewards/mean": 0.5,
        "rollout_corr/k3_kl": 2e-4,
        "timing_s/step": 4.0,
        "timing_s/update_weights": 0.2,
        "timing_s/gen": 2.0,
        "timing_s/update_actor": 1.0,
        "response_length/mean": 140.0,
        "perf/throughput": 256 * 181 / 4.0,
        "timing_per_token_ms/gen": 2000 / (256 * 140),
        "refit/tensors": 75,
    }
    names = ("rollout_is_mean", "rollout_is_max", "rollout_is_eff_sample_size") if weights else ()
    return json.dumps({"step": step, "data": data | {f"rollout_corr/{name}": 1.0 for name in names}}) + "\n"


def test_the_report_of_an_arm_without_weights(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from launch.demo.report import draw

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    for arm in ("int8", "int8-uncorrected"):
        (tmp_path / arm).mkdir()
        lines = [metrics_line(step, weights=arm == "int8") for step in (1, 2)]
        (tmp_path / arm / "metrics.jsonl").write_text("".join(lines))
    chosen = replace(CHOICES, arms=("int8", "int8-uncorrected"))
    watched = {"int8": training.Watched(1 << 30, 70.0), "int8-uncorrected": training.Watched(1 << 30, 65.0)}
    result = report.build_report(chosen, tmp_path, watched, 600.0)
    corrected, bare = result["arms"]
    assert (corrected["corrected"], bare["corrected"], bare["scheme"]) == (True, False, "int8")
    assert "ess" not in bare["steps"][0] and bare["steps"][0]["k3_kl"] == 2e-4
    assert (result["device"], result["hardware"]["gpu"]) == ("cuda", "A GPU")
    rows = list(zip(*(column.cells for column in table(result).columns), strict=True))
    assert rows[0][3:] == ("1.0000", "200", "4.0", "11584", "17920", "70")
    assert rows[1][3:] == ("-", "200", "4.0", "11584", "17920", "65")
    report.write_report(result, tmp_path / "report.json")
    assert "NaN" not in (tmp_path / "report.json").read_text()
    draw(result, tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
