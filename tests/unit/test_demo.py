"""The demo without verl: its reward, models, settings, options, report, and how it watches a training."""

import io
import json
import sys
from dataclasses import replace
from math import isnan, nan
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from naming import has_line_naming
from omegaconf import OmegaConf
from rich.console import Console
from typer.testing import CliRunner

from ascend_quant.commands.app import app
from ascend_quant.commands.demo import arms_of
from ascend_quant.demo import DemoError, report, training
from ascend_quant.demo import task as models
from ascend_quant.demo.reward import compute_score
from ascend_quant.processes.child import last_errors
from ascend_quant.recipes import leaves
from ascend_quant.recipes.compose import register

ROOT = Path(__file__).parents[2]
CHOICES = training.Choices(("bf16", "int8"), 7, 3, "qwen2")


@pytest.mark.parametrize(("said", "reward"), [("12", 1.0), ("012", 0.0), ("1", 0.0), ("122", 0.0)])
def test_reward_is_exact(said, reward):
    assert compute_score("addition", said, "12", extra_info={"index": 0}) == reward


@pytest.mark.parametrize("name", ["qwen2", "qwen3-moe"])
def test_the_tokenizer_is_the_models_and_transformers_reads_it(tmp_path, name):
    transformers = pytest.importorskip("transformers")
    model = models.build_model(name, seed=0)
    model.save_pretrained(tmp_path)
    models.save_tokenizer(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(loaded) == len(models.vocabulary()) == model.config.vocab_size
    assert loaded.decode(loaded.encode("12+7=")) == "12+7="
    assert [len(loaded.encode(text)) for text in ("12+7=", "\n", " ", "<|im_end|>")] == [5, 1, 1, 1]
    assert loaded.eos_token == "<|im_end|>"
    message = [{"role": "user", "content": "3+4="}]
    assert loaded.apply_chat_template(message, tokenize=False, add_generation_prompt=True) == "3+4="


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        ("bf16", "int8", {"scheme"}),
        ("int4_g32", "int4_g32-qat", {"qat"}),
        (
            *("int8", "int8-uncorrected"),
            {"correction"},
        ),
    ],
)
def test_arms_differ_in_one_setting_and_their_folder(tmp_path, one, other, differ):
    first, second = (set(told(arm, tmp_path)) for arm in (one, other))
    changed = {line.split("=")[0].rsplit(".", 1)[-1] for line in first ^ second}
    assert changed == differ and "++trainer.total_training_steps=7" in first


def told(arm: str, out: Path, choices=CHOICES) -> list[str]:
    """What verl's command line has after its module."""
    settings = training.settings_of(choices, arm, out)
    return training.command(training.recipe_of(choices, arm), settings)[len(training.MAIN) :]


def composed(arm: str, out: Path, choices=CHOICES):
    """verl's whole configuration."""
    register()
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=told(arm, out, choices))


@pytest.mark.parametrize("name", ["demo", "study"])
def test_verl_composes_the_settings(tmp_path, name):
    pytest.importorskip("verl")
    made = composed("int8", tmp_path, replace(CHOICES, setup=replace(CHOICES.setup, recipe=name)))
    assert made.trainer.total_training_steps == 7 and made.actor_rollout_ref.actor.strategy == "fsdp2"
    assert made.trainer.nnodes == 1 and made.actor_rollout_ref.rollout.calculate_log_probs
    assert made.reward.custom_reward_function.path == f"pkg://{compute_score.__module__}"


@pytest.mark.parametrize("page", ["low_precision.md", "low_precision.zh.md"])
def test_the_exact_arm_has_the_settings_of_the_page_of_exact_int8(tmp_path, page):
    text = (ROOT / "docs" / page).read_text()
    settings = next(
        block.split() for block in text.split("```") if "qat=int8_exact" in block and "bypass_mode" in block
    )
    made = composed("int8-exact", tmp_path)
    given = {f"{key}={json.dumps(value)}".replace('"', "") for key, value in leaves(OmegaConf.to_container(made))}
    assert len(settings) == 5 and {setting.lstrip("+") for setting in settings} <= given
    assert any(line.endswith(".scheme=int8") for line in given)


@pytest.mark.parametrize(
    ("arms", "exact", "names"),
    [
        (None, False, ("bf16", "int8")),
        ("int8-exact, fp8", False, ("int8-exact", "fp8")),
        (None, True, ("int8-exact", "int8", "bf16")),
    ],
)
def test_arms_of_the_command_line(arms, exact, names):
    assert arms_of(arms, exact) == names
    corrected = [training.is_corrected(name) for name in names]
    assert corrected == [name != "int8-exact" for name in names]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--exact", "--arms", "bf16"], "--arms 'bf16'"),
        (["--arms", "fp8-exact"], "--arms 'fp8-exact'"),
        (["--arms", "int8,int9"], "--arms 'int9': choose from int8, fp8"),
        (["--arms", "int8,int8"], "--arms 'int8,int8'"),
        (["--steps", "0"], "--steps"),
    ],
)
def test_bad_options_are_named(arguments, said):
    result = CliRunner().invoke(app, ["demo", *arguments])
    assert result.exit_code == 2 and said in result.stderr and "Traceback" not in result.stderr


def metrics_line(step: int, reward: float, kl: float, ess: float, seconds: float, refit: float) -> str:
    data = {
        "critic/rewards/mean": reward,
        "rollout_corr/k3_kl": kl,
        "rollout_corr/rollout_is_mean": 1.0,
        "rollout_corr/rollout_is_max": 1.5,
        "rollout_corr/rollout_is_eff_sample_size": ess,
        "timing_s/step": seconds,
        "timing_s/update_weights": refit,
        "timing_s/gen": seconds / 2,
        "timing_s/update_actor": seconds / 4,
        "response_length/mean": 2.5,
        "perf/throughput": 1000 / seconds,
        "timing_per_token_ms/gen": seconds,
        "refit/verified": 27,
        "refit/number": 1 + step,
        "refit/replica0/wake_ms": 3.5,
    }
    return json.dumps({"step": step, "data": data}) + "\n"


@pytest.fixture
def finished(tmp_path):
    """The folder of a finished demo of seven steps, with hand-written metrics."""
    rewards = {"bf16": (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0), "int8": (0.5, 0.5, 0.5, 0.5, 0.75, 1.0, 1.0)}
    for arm, values in rewards.items():
        (tmp_path / arm).mkdir()
        lines = [
            metrics_line(i + 1, r, 1e-4 * (i + 1), 1 - i / 100, 2.0 + i, 0.01 * (i + 1)) for i, r in enumerate(values)
        ]
        (tmp_path / arm / "metrics.jsonl").write_text("".join(lines))
    return tmp_path


def test_report_of_hand_written_metrics(finished):
    result = report.build_report(CHOICES, finished, seconds=61.25)
    bf16, int8 = result["arms"]
    assert (bf16["name"], int8["scheme"]) == ("bf16", "int8")
    assert bf16["final_reward"] == pytest.approx((0.7 + 0.8 + 0.9 + 1.0 + 1.0) / 5)
    assert int8["final_reward"] == pytest.approx(0.75)
    assert bf16["steps"][1] == {
        "step": 2,
        "reward": 0.6,
        "k3_kl": 2e-4,
        "is_mean": 1.0,
        "is_max": 1.5,
        "ess": 0.99,
        "step_seconds": 3.0,
        "refit_seconds": 0.02,
        "rollout_seconds": 1.5,
        "update_seconds": 0.75,
        "answer_tokens": 2.5,
        "tokens_per_second": pytest.approx(1000 / 3),
        "rollout_ms_per_token": 3.0,
    }
    assert (result["task"], result["seconds"]) == ("addition of two numbers up to 9", 61.2)
    assert int8["receipts"] == [{"verified": 27, "number": number} for number in range(2, 9)]
    assert report.summary(bf16) == pytest.approx(
        nan_ok=True,
        expected={
            "start_reward": 0.5,
            "final_reward": 0.88,
            "k3_kl_mean": 4e-4,
            "unequal": nan,
            "ess_min": 0.94,
            "refit_ms_median": 40.0,
            "step_s_median": 5.0,
            "rollout_tokens_s_median": 200.0,
        },
    )


def test_the_plot_is_a_file_and_the_table_has_every_arm(finished):
    pytest.importorskip("matplotlib")
    result = report.build_report(CHOICES, finished, 1.0)
    report.draw(result, finished / "report.png")
    assert (finished / "report.png").read_bytes().startswith(b"\x89PNG")
    for arm, name in zip(result["arms"], ("int4_g128-qat", "fp8_tensor-uncorrected"), strict=True):
        arm["name"] = name  # the longest
    shown = table_of(result)
    assert "…" not in shown and shown.count("4.0e-04") == 2 and "0.880" in shown
    assert all(name in shown for name in ("int4_g128-qat", "fp8_tensor-uncorrected"))
    assert "last 5" in " ".join(shown.split()) and has_line_naming(report.told(result), 14, 27)


def table_of(result) -> str:
    console = Console(width=80, file=io.StringIO())
    console.print(report.table(result))
    return console.file.getvalue()


def test_an_exact_arm_has_the_sum_of_its_unequal_tokens_and_their_own_k3(tmp_path):
    """verl logs no rollout_corr/* of such a run."""
    (tmp_path / "int8-exact").mkdir()
    (tmp_path / "int8").mkdir()
    lines = [json.loads(metrics_line(step, 0.5, 7, 1, 2, 0.01)) for step in (1, 2)]
    (tmp_path / "int8" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for line, unequal, k3_kl in zip(lines, (3, 2), (2e-6, 4e-6), strict=True):
        line["data"] = {name: value for name, value in line["data"].items() if not name.startswith("rollout_corr/")}
        line["data"] |= {"exact/tokens": 160, "exact/unequal": unequal, "exact/k3_kl": k3_kl}
    (tmp_path / "int8-exact" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    choices = replace(CHOICES, arms=("int8-exact", "int8"), steps=2)
    result = report.build_report(choices, tmp_path, 1.0)
    exact, corrected = (report.summary(arm) for arm in result["arms"])
    assert (exact["unequal"], exact["k3_kl_mean"]) == (5, pytest.approx(3e-6))
    assert isnan(exact["ess_min"]) and isnan(corrected["unequal"]) and corrected["k3_kl_mean"] == 7
    (row,) = (line.split() for line in table_of(result).splitlines() if "int8-exact" in line)
    assert row[3:6] == ["3.0e-06", "5", "-"]
    assert has_line_naming(report.told(result), "int8-exact", "5 of 320")
    alone = {**result, "arms": result["arms"][:1]}
    assert "TIS" in table_of(result) and "TIS" not in table_of(alone)


def test_a_half_written_line_waits_for_the_next_look(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert training.read_lines(path) == []
    path.write_text(metrics_line(1, 0.5, 0, 1, 1, 1) + metrics_line(2, 0.5, 0, 1, 1, 1)[:40])
    assert [line["step"] for line in training.read_lines(path)] == [1]


def test_a_missing_metric_is_named(tmp_path):
    (tmp_path / "bf16").mkdir()
    line = metrics_line(1, 0.5, 0, 1, 1, 1).replace("rollout_corr/k3_kl", "rollout_corr/k4_kl")
    (tmp_path / "bf16" / "metrics.jsonl").write_text(line)
    with pytest.raises(DemoError, match=r"step 1 has no rollout_corr/k3_kl"):
        report.arm_report("bf16", tmp_path / "bf16" / "metrics.jsonl")


def test_last_errors_are_the_drivers(tmp_path):
    log, said = tmp_path / "verl.log", "ascend_quant.transfer.errors.RefitError: layer 3 is missing"
    trace = f'Traceback (most recent call last):\n  File "x.py", line 3, in f\n    g()\n{said}\n'
    log.write_text(f"ValueError in a sentence is no error line? it is\n{trace}bye\n")
    assert last_errors(log).count(said) == 1 and "bye" not in last_errors(log)
    log.write_text("one\ntwo\n")
    assert "  two" in last_errors(log) and str(log) in last_errors(log)


@pytest.fixture
def run_watch(tmp_path, monkeypatch):
    """Watches a Python process that stands in for verl; returns what was seen at each look."""

    def run(code: str, steps: int = 2) -> list[int]:
        seen = []
        monkeypatch.setattr(training, "command", lambda *given: [sys.executable, "-c", code])
        training.train(replace(CHOICES, steps=steps), "int8", tmp_path, seen.append)
        return seen

    return run


def test_a_failure_has_its_reason_and_a_training_counts_its_steps(run_watch):
    with pytest.raises(DemoError, match=r"with 1 after 0 of 2 steps(.|\n)*ZeroDivisionError(.|\n)*verl.log"):
        run_watch("1/0")
    lines = [metrics_line(step, 0.5, 0, 1, 1000, 1) for step in (1, 2)]
    assert run_watch(f"open('metrics.jsonl', 'w').write({''.join(lines)!r})")[-1] == 2


def test_a_stalled_run_is_ended(run_watch, monkeypatch):
    monkeypatch.setattr(training, "FIRST_STEP_SECONDS", 2)
    with pytest.raises(DemoError, match=r"no step after 0 of 2 steps for 2 s"):
        run_watch("import time; time.sleep(600)")


def test_a_folder_with_an_earlier_run_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    for out, message in ((tmp_path / "file", str(tmp_path / "file")), (tmp_path / "full", "mine")):
        result = CliRunner().invoke(app, ["demo", "--out", str(out)])
        assert result.exit_code == 2 and message in result.stderr
