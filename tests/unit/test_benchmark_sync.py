"""The sync benchmark: what it makes of stamps that were written by hand, and the command."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from naming import has_line_naming
from sync_cases import ENGINES, SECONDS, STAGES, WHOLE, write
from typer.testing import CliRunner

from benchmarks import sync, sync_measured, sync_report, train_options
from benchmarks.stamped import Stamp, read
from benchmarks.sync_run import WAYS, Sync
from benchmarks.sync_stages import ENGINE_STAGES, TRAINER_STAGES, syncs_of
from benchmarks.sync_stages import Sync as SyncOfOne
from benchmarks.sync_stamps import CUDA, OURS, TARGETS, VERLS
from benchmarks.tasks import Outcome
from launch.recipes import Paths, resolve

ARM = Sync("qwen2.5-7b-int8-gsm8k-h100", "qwen2.5-7b", "int8", 12, 16, 6, 2)


def test_stages_add_up_to_what_verl_logs(tmp_path):
    write(tmp_path)
    before, *later = syncs_of(read(tmp_path))
    assert (before.step, [one.step for one in later]) == (0, [1, 2, 3])
    for one in later:
        stages = one.trainer_stages()
        assert tuple(stages) == TRAINER_STAGES
        assert stages == {name: pytest.approx(ms / 1e3) for name, ms in STAGES.items()}
        assert sum(stages.values()) == pytest.approx(one.whole) == pytest.approx(WHOLE)
        engine = one.engine_stages()
        assert tuple(engine) == ENGINE_STAGES
        assert engine == {name: pytest.approx(ms / 1e3) for name, ms in ENGINES.items()}
        assert sum(engine.values()) == pytest.approx(one.engine().seconds) == pytest.approx(0.085)
        assert one.bytes() == {"gathered": 1500, "handed over": 2000}
        assert [rank.process for rank in one.trainers] == ["one", "two"] and one.trainer.process == "one"
    assert before.whole == pytest.approx(SECONDS)
    assert before.trainer_stages()["Ray call"] == 0


def test_a_wake_up_is_what_the_trainer_waited_for():
    inside = [
        Stamp("one", "ServerAdapter.resume", 0.0, 0.3, "weights,kv_cache"),
        Stamp("one", "FSDPEngine.get_per_tensor_param", 0.05, 0.1, None),
        Stamp("one", "Gather.whole", 0.1, 0.2, None),
        Stamp("one", "ServerAdapter.update_weights", 0.35, 0.9, 0),
    ]
    one = SyncOfOne(1, 1.25, [Stamp("one", "ActorRolloutRefWorker.update_weights", 0.0, 1.0, None, inside)], [], [])
    wanted = {"Ray call": 0.25, "wake-up of weights": 0.15, "export": 0.05, "gathers": 0.1, "engine ends": 0.55}
    found = {name: pytest.approx(seconds) for name, seconds in one.trainer_stages().items() if seconds}
    assert found == wanted | {"other": 0.15}


def test_what_is_inside_what(tmp_path):
    write(tmp_path)
    found = sync_measured.measured(read(tmp_path), "int8", "cuda")
    assert found["faults"] == [] and len(found["syncs"]) == 4
    calls = {(one["lane"], one["depth"], one["call"]): one for one in found["calls"]}
    assert calls["trainer", 3, "Gather.__init__"] == {
        **{"lane": "trainer", "depth": 3, "call": "Gather.__init__", "count": 2},
        **{"ms": pytest.approx(7), "from_ms": pytest.approx(34)},
    }
    assert calls["server", 0, "vLLMHttpServer.clear_kv_cache"]["count"] == 1  # its own server's
    assert calls["engine", 0, "Worker.wake_up weights"]["ms"] == pytest.approx(15)
    assert calls["engine", 3, "Refit.flush"]["ms"] == pytest.approx(12)
    assert {one["stage"] for one in found["drawn"] if one["lane"] == "server"} == {"cache clearing"}
    assert max(one["end"] for one in found["drawn"]) == pytest.approx(1e3 * SECONDS)


def test_medians_add_up_to_the_median_of_the_whole():
    rows = [
        {"trainer": {**dict.fromkeys(TRAINER_STAGES, 0.0), "gathers": gathers, "other": other}}
        for gathers, other in ((1, 9), (2, 2), (8, 5))
    ]
    found = sync_report.medians(rows, "trainer")
    assert (found["gathers"], found["other"], sync_report.whole(rows)) == (2, 5, 10)
    assert found[sync_report.SPREAD] == 3 and sum(found.values()) == 10


def test_stamps_that_lack_something_are_faults(tmp_path):
    gone = next(target for target in TARGETS if target.name == "Gather.whole")
    write(tmp_path, targets=[target for target in TARGETS if target is not gone])
    with (tmp_path / "one.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"missing": gone.place}) + "\n")
    (fault,) = sync_measured.measured(read(tmp_path), "int8", "cuda")["faults"]
    assert has_line_naming(fault, gone.place, "is not there")
    away = [target for target in TARGETS if target.of != CUDA]
    write(tmp_path / "cpu", targets=away)
    assert sync_measured.measured(read(tmp_path / "cpu"), "int8", "cpu")["faults"] == []
    on_a_gpu = sync_measured.measured(read(tmp_path / "cpu"), "int8", "cuda")["faults"]
    assert len(on_a_gpu) == len(TARGETS) - len(away) and "CuMemAllocator.wake_up" in on_a_gpu[-1]
    write(tmp_path / "few", syncs=2)
    assert len(sync_measured.measured(read(tmp_path / "few"), "int8", "cuda")["faults"]) == 1
    write(tmp_path / "dumb", engine=[])
    assert len(sync_measured.measured(read(tmp_path / "dumb"), "int8", "cuda")["faults"]) == 1
    nothing = sync_measured.measured(read(tmp_path / "none"), "int8", "cpu")
    assert len(nothing["faults"]) == 1 + sum(target.of in ("", OURS) for target in TARGETS) and nothing["drawn"] == []


def test_the_plain_arm_may_have_nothing_of_ours_in_it(tmp_path):
    write(tmp_path)
    (fault,) = sync_measured.measured(read(tmp_path), "plain", "cuda")["faults"]
    assert has_line_naming(fault, "Digests.add_all", "Gather.__init__", "Refit.close")
    assert any(target.of == VERLS for target in TARGETS)


def outcome(folder: Path, way: str) -> Outcome:
    write(folder)
    steps = [
        {"step": step, "data": {"timing_s/update_weights": WHOLE, "refit/bytes": 1900, "refit/replica0/bytes": 1900}}
        for step in (1, 2, 3)
    ]
    result = {"steps": steps, **sync_measured.measured(read(folder), "int8", "cuda")}
    return Outcome(replace(ARM, way=way), 60.0, result)


def test_json_is_read_and_drawn_again(tmp_path, capsys):
    outcomes = [outcome(tmp_path / "a", "int8"), outcome(tmp_path / "b", "plain"), Outcome(ARM, 9.0, None, "gone; ..")]
    sync_report.write_json(tmp_path / "run.json", "cpu", outcomes)
    content = json.loads((tmp_path / "run.json").read_text())
    assert [row["way"] for row in content["rows"]] == ["int8", "plain"] and content["faults"] == ["gone; .."]
    row = content["rows"][0]
    assert row["syncs"] == 2 and row["ms"] == pytest.approx(1e3 * WHOLE)
    stages = STAGES | {sync_report.SPREAD: 0}
    assert row["trainer"] == {name: pytest.approx(ms, abs=1e-6) for name, ms in stages.items()}
    assert row["logged"] == {"refit/bytes": 1900, "timing_s/update_weights": WHOLE}
    again, _ = sync_report.read_run(tmp_path / "run.json")
    assert again == outcomes
    sync_report.draw(again, ["NVIDIA H200, 143771 MiB, 580"], tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    sync_report.show(again, [], sync_report.console())
    sync_report.show_calls(again, sync_report.console())
    assert has_line_naming(capsys.readouterr().out, "waits for the engine", "30.0")


@pytest.mark.parametrize(
    ("model", "ours", "plain", "met"),
    [
        ("qwen2.5-7b", 300, 800, [True, True]),
        ("qwen2.5-7b", 300, 600, [True, False]),
        ("qwen2.5-7b-2-layers", 300, 800, [None, None]),
        ("qwen3-30b-a3b-10-layers", 400, 800, [True]),
        ("qwen3-30b-a3b", 401, 800, [False]),
    ],
)
@pytest.mark.parametrize("way", ["int8", "codes"])
def test_bars(way, model, ours, plain, met):
    rows = [{"way": way, "model": model, "ms": ms} for way, ms in ((way, ours), ("plain", plain), ("bf16", 1))]
    assert [bar.met for bar in sync_report.bars_of(rows, judged=True)] == met
    assert {bar.met for bar in sync_report.bars_of(rows, judged=False)} == {None}
    assert sync_report.bars_of(rows[1:], judged=True) == []


def test_the_plain_arm_is_verls_own_to_verl():
    """Composed by verl's own loader: neither names our quantization, whose absence leaves the run to verl."""
    pytest.importorskip("verl")
    from hydra import compose, initialize_config_module

    from ascend_quant.integrations.verl.settings import wants_refits

    paths = Path("/m"), Path("/d"), Path("/o")
    for way, scheme in WAYS.items():
        arm = replace(ARM, scheme=scheme, way=way, overrides=("data.train_batch_size=6",))
        command = arm.command(*paths)
        if way == "plain":
            overrides = command[command.index("verl.trainer.main_ppo") + 1 :]
            assert "VERL_FILE_LOGGER_ROOT=/o/metrics" in command
            overrides = [one for one in overrides if not one.startswith("hydra.")]  # hydra's own, without its main
        else:
            resolved = resolve(arm.loaded(), Paths(*map(str, paths))).overrides
            overrides = [*resolved, *command[command.index("--") + 1 :]]
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer", overrides=overrides)
        assert wants_refits(config) == (way != "plain")
        assert (config.data.train_batch_size, config.trainer.total_training_steps) == (6, 6)
        assert config.actor_rollout_ref.rollout.ignore_eos is True


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--arms", "int9"], "'int9' is none of"),
        (["--device", "cpu"], "plain"),
        (["--steps", "2"], "--steps"),
        (["--recipe", "nowhere"], "no recipe 'nowhere'"),
        (["--layers", "99"], "99"),
    ],
)
def test_wrong_use(arguments, said):
    run = CliRunner().invoke(sync.app, arguments)
    assert run.exit_code == 2 and has_line_naming(" ".join(run.output.replace("│", " ").split()), said)


def test_the_documented_commands_are_understood(monkeypatch, tmp_path):
    docs = Path(__file__).parents[2] / "docs"
    found = [line.partition(" #")[0].split() for line in (docs / "gpu.md").read_text().splitlines()]
    commands = [words[3:] for words in found if words[:3] == ["./run.sh", "bench", "sync"]]
    asked = []
    monkeypatch.setattr(train_options, "make_model", lambda *_: None)
    monkeypatch.setattr(sync, "in_turn", lambda tasks, *_: asked.append(list(tasks)) or [])
    monkeypatch.chdir(tmp_path)
    for arguments in commands:
        run = CliRunner().invoke(sync.app, arguments)
        assert run.exit_code == 0, run.output
    assert len(asked) == len(commands) > 2 and all(asked)
    assert [task.way for task in asked[0]] == ["int8", "bf16", "plain"]
    sent = {task.way: task.loaded().rollout.send for tasks in asked for task in tasks}
    assert sent == {"int8": "bf16", "codes": "int8", "bf16": "bf16", "plain": "bf16"}
