"""The benchmarks of trainings and of their weight syncs: the command of an arm, and what they make of verl's log."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from naming import has_line_naming

from ascend_quant.processes.child import Ended
from benchmarks import sync, train_report, train_run
from benchmarks.models import get_model
from benchmarks.report import Outcome, faults_of
from benchmarks.sync import Sync
from benchmarks.train_files import write_model, write_prompts
from benchmarks.train_reward import compute_score
from benchmarks.train_run import Arm, settings_for
from launch.recipes import Paths, load, resolve

RECIPE = "qwen2.5-7b-int8-gsm8k-h100"
ARM = Arm(RECIPE, "qwen2.5-7b", "int8", 256, 4096, 4, 2)
APART = Sync(RECIPE, "qwen2.5-7b", "int8", 12, 16, 4, 4, send="delta", engines=1)


@pytest.mark.parametrize(("name", "devices"), [(RECIPE, 2), ("qwen3-30b-a3b-int8-grpo-h200", 1)])
def test_recipes_fit_fewer_devices(name, devices):
    settings = settings_for(load(name), devices, prompt=256, answer=10000)
    recipe = load(name, [f"{key}={value}" for key, value in settings.items()])  # refuses what does not go together
    assert (recipe.devices, recipe.rollout.tensor_parallel, recipe.rollout.expert_parallel) == (devices, 1, 1)
    assert recipe.sequence_parallel == min(load(name).sequence_parallel, devices)


def composed(overrides: list[str]):
    """By verl's own loader, which refuses a key that it does not have."""
    pytest.importorskip("verl")
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=overrides)


def test_the_arms_settings_are_verls():
    arm = replace(ARM, changes=("actor_rollout_ref.rollout.n=2",), overrides=("data.train_batch_size=6",))
    command = arm.command(Path("/m"), Path("/d"), Path("/o"))
    recipe = load(command[command.index("train") + 1], command[command.index("--") + 1 :])
    config = composed([*resolve(recipe, Paths("/m", "/d", "/o"))])
    rollout = config.actor_rollout_ref.rollout
    assert (rollout.ignore_eos, rollout.n, rollout.tensor_model_parallel_size) == (True, 2, 1)
    assert (config.data.max_prompt_length, config.data.max_response_length) == (256, 4096)
    assert (config.trainer.n_gpus_per_node, config.trainer.total_training_steps) == (2, 4)
    assert config.data.train_batch_size == 6 and not config.algorithm.filter_groups.enable
    assert Path(config.reward.custom_reward_function.path).is_file()


@pytest.mark.parametrize("scheme", ["int8-exact", "int8", "bf16"])
@pytest.mark.parametrize("recipe", [RECIPE, "qwen2.5-7b-int8-exact-gsm8k-h100"])
def test_an_exact_arm_alone_has_no_importance_weights(recipe: str, scheme: str):
    """Whether or not the recipe is exact."""
    made, is_exact = replace(ARM, recipe=recipe, scheme=scheme).loaded(), scheme == "int8-exact"
    assert (made.rollout.scheme, made.qat) == (scheme.removesuffix("-exact"), "int8_exact" if is_exact else None)
    assert (made.correction is None) == is_exact


@pytest.mark.parametrize(("scheme", "qat"), [("int4_g128", "int4_g128"), ("int4_g32", "int4_g32"), ("int8", None)])
def test_an_arm_of_an_int4_recipe_trains_for_its_own_scheme(scheme: str, qat: str | None):
    """Where the trainer can: there is no fake quantization for int8."""
    made = replace(ARM, recipe="moonlight-16b-a3b-int4", scheme=scheme).loaded()
    assert (made.rollout.scheme, made.qat) == (scheme, qat)


def test_the_plain_arm_is_verls_own():
    pytest.importorskip("verl")
    from ascend_quant.integrations.verl.settings import wants_refits

    arm = Sync(RECIPE, "qwen2.5-7b", "bf16", 12, 16, 4, 2, send="plain")
    command = arm.command(Path("/m"), Path("/d"), Path("/o"))
    overrides = command[command.index("verl.trainer.main_ppo") + 1 :]
    config = composed([one for one in overrides if not one.startswith("hydra.")])  # hydra's own, without its main
    assert not wants_refits(config) and config.trainer.total_training_steps == 4
    ours = replace(arm, scheme="int8", send="int8")
    assert wants_refits(composed(resolve(ours.loaded(), Paths("/m", "/d", "/o"))))
    apart = APART.loaded()  # some devices train, the others generate
    assert (apart.devices_per_node, apart.rollout.apart, apart.rollout.send) == (4, 1, "delta")
    assert apart.sequence_parallel <= 3


def test_what_the_training_reads(tmp_path):
    from pandas import read_parquet
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = get_model("tiny")
    write_model(model, tmp_path / "tiny", "cpu")
    weights = AutoModelForCausalLM.from_pretrained(tmp_path / "tiny")
    assert {name: tuple(data.shape) for name, data in weights.state_dict().items()} == model.shapes()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tiny")
    assert len(tokenizer) == model.vocab
    write_prompts([tmp_path / "data" / "train.parquet"], rows=5, tokens=17)
    for prompt in read_parquet(tmp_path / "data" / "train.parquet")["prompt"]:
        ids = tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True, return_dict=False)
        assert len(ids) == 17
    rewards = {compute_score("benchmark", str(number), "") for number in range(9)}
    assert rewards == {0.0, 1.0}


def logged(step: int, seconds: float, gen: float, actor: float, answer: int = 4096) -> dict:
    """A step's line as verl writes it: 64 answers."""
    lengths = {"prompt_length": 256, "response_length": answer}
    data = {
        "timing_s/step": seconds,
        "timing_s/gen": gen,
        "timing_s/update_actor": actor,
        "timing_s/update_weights": 1.0,
        "perf/mfu/actor": 0.4,
        "perf/total_num_tokens": 64 * (256 + answer),
        "actor/perf/max_memory_allocated_gb": 50.0 + step,
        **{f"{name}/{end}": value for name, value in lengths.items() for end in ("min", "max")},
    }
    return {"at": 100.0 + seconds * step, "step": step, "data": data}


def outcome(scheme: str, gen: float, actor: float) -> Outcome:
    steps = [logged(1, 60.0, 30.0, 25.0), *(logged(n, 3 + gen + actor, gen, actor) for n in (2, 3, 4))]
    return Outcome(replace(ARM, scheme=scheme), 300.0, {"sizes": {"epochs": 1}, "steps": steps, "faults": []})


def test_rows_leave_out_the_first_step():
    plain, ours = train_report.rows_of([outcome("bf16", 20.0, 10.0), outcome("int8", 10.0, 10.0)])
    assert plain.step == {"median": 33.0, "low": 33.0, "high": 33.0, "count": 3}
    assert ours.tokens_per_second == 64 * 4096 / 10
    assert (ours.rollout_ratio, ours.step_ratio) == (2.0, pytest.approx(23 / 33))
    stages = {name: one["median"] for name, one in ours.stages.items() if one["median"]}
    assert stages == {"gen": 10.0, "update_actor": 10.0, "update_weights": 1.0, "rest": 2.0}
    assert ours.first_more == 60.0 - 23.0 and ours.start == 100.0 and ours.memory_gib == 54.0


def run_of(monkeypatch, tmp_path, code: int, lines: list[dict], said: str) -> Outcome:
    """`carry_out` of a training that logs these lines and ends so."""

    def run(command, folder, name, limit, stack, at_each_look):
        out = Path(command[command.index("--out") + 1]) / "metrics" / "project"
        out.mkdir(parents=True)
        (out / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        at_each_look()
        log = folder / f"{name}.log"
        log.write_text(said)
        return Ended(code, 7.0, log)

    monkeypatch.setattr(train_run, "run", run)
    return train_run.carry_out(replace(ARM, steps=2), tmp_path / "models", tmp_path / "logs", 60)


def test_an_arm_out_of_memory_is_reported(monkeypatch, tmp_path):
    said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    found = run_of(monkeypatch, tmp_path, 1, [], said)
    assert found.result is None and "out of memory; " in found.error
    some = run_of(monkeypatch, tmp_path / "b", 1, [logged(1, 60.0, 30.0, 25.0)], said)
    assert has_line_naming(faults_of([some])[0], "1 of 2 steps", "out of memory")
    assert train_report.rows_of([some]) == []


def test_an_arm_that_ends_well_and_one_with_answers_of_another_length(monkeypatch, tmp_path):
    lines = [logged(1, 60.0, 30.0, 25.0), logged(2, 33.0, 20.0, 10.0, answer=4000)]
    found = run_of(monkeypatch, tmp_path, 0, lines, "done")
    (fault,) = faults_of([found])
    assert has_line_naming(fault, "response_length", "4000") and train_report.rows_of([found]) == []
    lines[1] = logged(2, 33.0, 20.0, 10.0)
    found = run_of(monkeypatch, tmp_path / "right", 0, lines, "done")
    assert faults_of([found]) == [] and [line["step"] for line in found.result["steps"]] == [1, 2]
    assert found.result["sizes"] == {"prompts": 16, "n": 4, "epochs": 1}


def synced(send: str, seconds: list[float], verified: int = 339) -> Outcome:
    ours = {"refit/bytes_sent": 1 << 30, "refit/verified": verified, "refit/replica0/wake_ms": 1}
    refit = {} if send == "plain" else ours
    steps = [{"step": n, "data": {train_run.TIMED: took, **refit}} for n, took in enumerate(seconds, 1)]
    return Outcome(replace(APART, send=send, engines=0), 60.0, {"steps": steps, "faults": []})


def test_the_first_sync_is_left_out_and_ratios_are_of_the_same_run():
    arms = [synced("bf16", [9, 4, 2, 3]), synced("int8", [9, 1, 0.5, 0.3]), synced("plain", [9, 6])]
    rows = {row["send"]: row for row in sync.rows_of(arms)}
    assert {send: row["median_s"] for send, row in rows.items()} == {"bf16": 3, "int8": 0.5, "plain": 6}
    assert (rows["int8"]["of_bf16"], rows["int8"]["of_plain"]) == (pytest.approx(1 / 6), pytest.approx(1 / 12))
    assert "refit/replica0/wake_ms" not in rows["int8"]["logged"] and rows["plain"]["logged"] == {}
    sync.show(arms, sync.console())


def test_a_sync_that_is_not_verified_is_a_fault():
    assert sync.not_verified(synced("int8", [1, 1])) == [] == sync.not_verified(synced("plain", [1, 1]))
    found = sync.not_verified(synced("int8", [1, 1], verified=0))
    assert len(found) == 2 and all(
        has_line_naming(fault, f"step {n}", "refit/verified") for n, fault in enumerate(found, 1)
    )
