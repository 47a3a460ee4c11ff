"""The training benchmark: its count of operations, the command of an arm, and what it makes of verl's log."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from naming import has_line_naming
from typer.testing import CliRunner

from benchmarks import train, train_options, train_report, train_run
from benchmarks.fewer_devices import as_options, fields_for
from benchmarks.flops import update_flops, weights_in_products
from benchmarks.models import MODELS, get_model
from benchmarks.tasks import Outcome
from benchmarks.train_files import write_model, write_prompts
from benchmarks.train_reward import compute_score
from benchmarks.train_run import Arm, Steps
from launch.recipes import load
from launch.smoke.child import Ended

RECIPE = "qwen2.5-7b-int8-gsm8k-h100"
ARM = Arm(RECIPE, "qwen2.5-7b", "int8", 256, 4096, 4, 2)
PEAK = 1e15


def test_operations_are_those_that_torch_counts():
    """Forward and backward of a whole model; torch counts attention without its mask, which leaves half of it."""
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoConfig, AutoModelForCausalLM

    model, length = get_model("tiny"), 32
    kind = model.config() | {"dtype": "float32"}
    config = AutoConfig.for_model(kind.pop("model_type"), **kind)
    network = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    with FlopCounterMode(display=False) as counter:
        network(torch.arange(2 * length).view(2, length)).logits.sum().backward()
    masked = 6 * model.layers * model.heads * model.head_dim * 2 * length**2
    angles = model.head_dim * length  # of positions, which transformers makes by a product
    assert counter.get_total_flops() == update_flops(model, [length, length]) + masked + angles


@pytest.mark.parametrize("name", ["qwen2.5-7b", "qwen2.5-0.5b", "qwen3-30b-a3b"])
def test_weights_in_products_are_the_checkpoints_matrices(name):
    model = MODELS[name]
    sizes = {key: torch.Size(shape).numel() for key, shape in model.shapes().items() if len(shape) > 1}
    if not model.tied:
        del sizes["model.embed_tokens.weight"]
    shares = {key: model.top_k / model.experts if ".experts." in key else 1 for key in sizes}
    assert weights_in_products(model) == sum(size * shares[key] for key, size in sizes.items())


@pytest.mark.parametrize("name", ["qwen2.5-7b", "qwen2.5-0.5b"])
def test_verls_counter_takes_the_embedding_for_a_product(name, monkeypatch):
    counters = pytest.importorskip("verl.utils.flops_counter")
    from transformers import Qwen2Config

    model, lengths = MODELS[name], [4352, 100, 7]
    monkeypatch.setattr(counters, "get_device_flops", lambda: 1.0)
    teraflops, _ = counters.FlopsCounter(Qwen2Config(**model.config())).estimate_flops(lengths, 1.0)
    embedding = 6 * model.vocab * model.hidden * sum(lengths)
    assert teraflops * 1e12 == pytest.approx(update_flops(model, lengths) + embedding)


@pytest.mark.parametrize(
    "name", [RECIPE, "qwen2.5-32b-int8-dapo-h200", "qwen3-30b-a3b-int8-grpo-h200", "kimi-k2-thinking-int4"]
)
@pytest.mark.parametrize("devices", [1, 2])
def test_recipes_fit_fewer_devices(name, devices):
    fields = fields_for(load(name), devices, prompt=256, answer=10000)
    changes = dict(option.split("=", 1) for option in as_options(fields | {"model.numbers": None})[1::2])
    recipe = load(name, changes=changes)  # refuses what does not go together
    assert (recipe.devices, recipe.rollout.tensor_parallel, recipe.rollout.expert_parallel) == (devices, 1, 1)
    assert recipe.training.sequence_parallel == min(load(name).training.sequence_parallel, devices)


def test_the_arms_settings_are_verls():
    """Composed by verl's own loader, which refuses a key that it does not have."""
    pytest.importorskip("verl")
    from hydra import compose, initialize_config_module

    from launch.recipes import Paths, resolve

    arm = replace(ARM, changes=("rollout.n=2",), overrides=("data.train_batch_size=6",))
    command = arm.command(Path("/m"), Path("/d"), Path("/o"))
    where = command.index("--")
    assert command[where - 1] == "rollout.n=2"
    overrides = [*resolve(arm.loaded(), Paths("/m", "/d", "/o")).overrides, *command[where + 1 :]]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    rollout = config.actor_rollout_ref.rollout
    assert (rollout.ignore_eos, rollout.n, rollout.tensor_model_parallel_size) == (True, 2, 1)
    assert (config.data.max_prompt_length, config.data.max_response_length) == (256, 4096)
    assert (config.trainer.n_gpus_per_node, config.trainer.total_training_steps) == (2, 4)
    assert config.data.train_batch_size == 6 and not config.algorithm.filter_groups.enable
    assert Path(config.reward.custom_reward_function.path).is_file()


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
    data = {
        "timing_s/step": seconds,
        "timing_s/gen": gen,
        "timing_s/update_actor": actor,
        "timing_s/update_weights": 1.0,
        "perf/mfu/actor": 0.4,
        "perf/total_num_tokens": 64 * (256 + answer),
        "actor/perf/max_memory_allocated_gb": 50.0 + step,
        **{
            f"{name}/{end}": value
            for name, value in (("prompt_length", 256), ("response_length", answer))
            for end in ("min", "max")
        },
    }
    return {"at": 100.0 + seconds * step, "step": step, "data": data}


def outcome(scheme: str, gen: float, actor: float, **more) -> Outcome:
    steps = [logged(1, 60.0, 30.0, 25.0), *(logged(n, 3 + gen + actor, gen, actor) for n in (2, 3, 4))]
    return Outcome(replace(ARM, scheme=scheme, **more), 300.0, {"sizes": {"epochs": 1}, "steps": steps, "faults": []})


def test_rows_leave_out_the_first_step():
    plain, ours = train_report.rows_of([outcome("bf16", 20.0, 10.0), outcome("int8", 10.0, 10.0)], PEAK)
    assert plain.step == {"median": 33.0, "low": 33.0, "high": 33.0, "count": 3}
    assert ours.tokens_per_second == 64 * 4096 / 10
    assert (ours.rollout_ratio, ours.step_ratio) == (2.0, pytest.approx(23 / 33))
    assert {name: one["median"] for name, one in ours.stages.items()} == {
        "gen": 10.0,
        "old_log_prob": 0.0,
        "ref": 0.0,
        "update_actor": 10.0,
        "update_weights": 1.0,
        "rest": 2.0,
    }
    first = {name: seconds for name, seconds in ours.first_stages.items() if seconds}
    assert first == {"gen": 20.0, "update_actor": 15.0, "rest": 2.0}
    assert ours.first_more == 60.0 - 23.0 and ours.start == 100.0 and ours.memory_gib == 54.0
    # 6 operations for each weight and token, and the causal half of attention's, over 2 devices for 10 s
    products = 28 * (3584 * (3584 + 2 * 512) + 3584 * 3584 + 3 * 3584 * 18944) + 152064 * 3584
    attention = 28 * 28 * 128 * 4352**2
    assert ours.mfu == pytest.approx(64 * (6 * products * 4352 + 6 * attention) / (10 * 2 * PEAK))
    assert train_report.rows_of([outcome("int8", 10.0, 10.0)], None)[0].mfu is None


@pytest.mark.parametrize(("gen", "rollout", "step"), [(10.0, True, True), (19.0, False, True), (40.0, False, False)])
def test_bars(gen, rollout, step):
    rows = train_report.rows_of([outcome("bf16", 20.0, 10.0), outcome("int8", gen, 10.0)], PEAK)
    assert [bar.met for bar in train_report.bars_of(rows, judged=True)] == [True, False, rollout, step]
    assert {bar.met for bar in train_report.bars_of(rows, judged=False)} == {None}
    assert {bar.met for bar in train_report.bars_of([replace(row, answer=1024) for row in rows], judged=True)} == {None}


def test_json_holds_every_step_and_is_drawn_again(tmp_path):
    outcomes = [outcome("bf16", 20.0, 10.0), outcome("int8", 10.0, 10.0), Outcome(ARM, 9.0, None, "out of memory; ..")]
    train_report.write_json(tmp_path / "run.json", "cpu", outcomes)
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["faults"] == ["out of memory; .."] and len(found["rows"]) == 2
    again, _ = train_report.read(tmp_path / "run.json")
    assert again == outcomes
    train_report.draw(again, ["NVIDIA H200, 143771 MiB, 580"], tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_a_gpus_peak():
    assert train_report.peak_of(["NVIDIA H200, 143771 MiB, 580.95"]) == 989.5e12
    assert train_report.peak_of(["NVIDIA A100-SXM4-80GB, 81920 MiB, 580.95"]) == 312e12
    assert train_report.peak_of(["NVIDIA L4, 23034 MiB, 580.95"]) is None and train_report.peak_of([]) is None


def run_of(monkeypatch, tmp_path, code: int, lines: list[dict], said: str) -> Outcome:
    """`carry_out` of a training that logs these lines and ends so."""

    def run(setting, name, command, limit, variables, at_each_look):
        out = Path(command[command.index("--out") + 1]) / "metrics" / "project"
        out.mkdir(parents=True)
        (out / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        at_each_look()
        log = setting.folder / f"{name}.log"
        log.write_text(said)
        return Ended(code, 7.0, log, log)

    monkeypatch.setattr(train_run, "run", run)
    return train_run.carry_out(replace(ARM, steps=2), tmp_path / "models", tmp_path / "logs", 60)


def test_an_arm_that_ends_well(monkeypatch, tmp_path):
    lines = [logged(1, 60.0, 30.0, 25.0), logged(2, 33.0, 20.0, 10.0)]
    found = run_of(monkeypatch, tmp_path, 0, lines, "done")
    assert found.result["faults"] == [] and [line["step"] for line in found.result["steps"]] == [1, 2]
    assert found.result["sizes"] == {"prompts": 16, "n": 4, "epochs": 1}


def test_an_arm_out_of_memory_is_reported(monkeypatch, tmp_path):
    said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    found = run_of(monkeypatch, tmp_path, 1, [], said)
    assert found.result is None and "out of memory; " in found.error and "ended with 1" in found.error
    some = run_of(monkeypatch, tmp_path / "b", 1, [logged(1, 60.0, 30.0, 25.0)], said)
    assert has_line_naming(some.result["faults"][0], "1 of 2 steps", "out of memory")
    assert train_report.rows_of([some], PEAK) == []


def test_answers_of_another_length_are_a_fault(monkeypatch, tmp_path):
    lines = [logged(1, 60.0, 30.0, 25.0), logged(2, 33.0, 20.0, 10.0, answer=4000)]
    found = run_of(monkeypatch, tmp_path, 0, lines, "done")
    assert len(found.result["faults"]) == 1 and "response_length is 4000" in found.result["faults"][0]
    assert train_report.rows_of([found], PEAK) == []


def test_steps_are_read_once_each(tmp_path):
    steps = Steps(tmp_path, 0.0)
    steps.look()
    (tmp_path / "metrics").mkdir()
    file = tmp_path / "metrics" / "run.jsonl"
    line = json.dumps({"step": 1, "data": {"timing_s/step": 1.0}})
    file.write_text(line + "\n" + line[:9])
    steps.look()
    steps.look()
    assert [one["step"] for one in steps.seen] == [1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--answers", "64,x"], "give numbers of tokens"),
        (["--arms", "int9"], "'int9' is none of"),
        (["--recipe", "nowhere"], "no recipe 'nowhere'"),
        (["--recipe", "qwen3-4b-fp8"], "no shape of qwen3-4b"),
        (["--model", "8b"], "'8b' is none of"),
        (["--gpus", "2", "--tensor-parallel", "4"], "2 devices … 4"),
    ],
)
def test_wrong_use(arguments, said):
    run = CliRunner().invoke(train.app, arguments)
    assert run.exit_code == 2 and has_line_naming(" ".join(run.output.replace("│", " ").split()), said)


def test_arms_take_turns_at_being_first(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(train_options, "make_model", lambda *_: None)
    monkeypatch.setattr(train, "in_turn", lambda tasks, seconds, write, measure: asked.extend(tasks) or [])
    where = ["--folder", str(tmp_path)]
    CliRunner().invoke(train.app, ["--answers", "64,128", "--repeats", "2", *where])
    arms = [(task.answer, task.scheme) for task in asked]
    assert arms[:4] == [(64, "bf16"), (64, "int8"), (64, "int8"), (64, "bf16")] and len(arms) == 8
    assert {(task.recipe, task.model, task.gpus) for task in asked} == {(RECIPE, "qwen2.5-7b", 2)}


def test_the_documented_commands_are_understood(monkeypatch, tmp_path):
    """Of docs/gpu.md, and those in Chinese are the same."""
    docs = Path(__file__).parents[2] / "docs"
    english, chinese = (
        [
            line.partition(" #")[0].split()
            for line in (docs / name).read_text().splitlines()
            if line.startswith("./run.sh")
        ]
        for name in ("gpu.md", "gpu.zh.md")
    )
    assert english == chinese
    asked = []
    monkeypatch.setattr(train_options, "make_model", lambda *_: None)
    monkeypatch.setattr(train, "in_turn", lambda tasks, *_: asked.append(list(tasks)) or [])
    monkeypatch.chdir(tmp_path)
    commands = [words[3:] for words in english if words[1:3] == ["bench", "train"]]
    for arguments in commands:
        run = CliRunner().invoke(train.app, arguments)
        assert run.exit_code == 0, run.output
    assert len(asked) == len(commands) > 3 and all(asked)
