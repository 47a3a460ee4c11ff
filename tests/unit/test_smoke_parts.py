"""`ascend-quant smoke`, and `run.sh smoke` with the doctor: its parts, however a process ends, and its command."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from ending import ended_soon
from hydra import compose, initialize_config_module
from naming import has_line_naming
from rich.console import Console
from smoke_cases import logged
from typer.testing import CliRunner

from ascend_quant.commands.app import app
from ascend_quant.demo import DemoError, warmup
from ascend_quant.demo.training import MAIN, command
from ascend_quant.processes import child as children
from ascend_quant.processes.child import Ended
from ascend_quant.processes.memory import GIB
from ascend_quant.recipes.compose import register
from ascend_quant.smoke import SPOILT, parts, probes, results, training
from ascend_quant.smoke import __main__ as process
from ascend_quant.smoke import setting as shared
from ascend_quant.smoke.parts import Parts
from ascend_quant.smoke.probes import Probe, Seen
from ascend_quant.smoke.results import FAILED, NOT_APPLICABLE, OK, Result
from ascend_quant.smoke.setting import Setting, stack_of
from launch.doctor.checking import Finding, HostReport, Report


@pytest.fixture(autouse=True)
def logs_that_stay_go_with_the_test(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting("cpu", tmp_path, 2, doctor=True)


def probe(function=lambda on: Seen({"a": 1}), name: str = "a.one", slow: bool = False) -> Probe:
    return Probe(name, "what it decides", function, ("cpu",), slow, 60)


# ---- a process of some probes
def logs(on):
    """As vLLM does: its handler keeps what is stdout at its import."""
    print("printed")
    return Seen({"a": 1})


def test_a_process_writes_its_results_after_each_probe(tmp_path, monkeypatch):
    def ends(on):
        raise SystemExit(3)

    found = [probe(logs), probe(name="a.two"), probe(ends, "a.three")]
    monkeypatch.setattr(process, "probes_for", lambda device, names: [one for one in found if one.name in names])
    with pytest.raises(SystemExit):
        process.main("cpu", str(tmp_path / "x.json"), "a.one,a.two,a.three")
    content = json.loads((tmp_path / "x.json").read_text())
    assert [(one["name"], one["status"]) for one in content["probes"]] == [("a.one", OK), ("a.two", OK)]


# ---- commands in processes of their own
DIES = "import os, sys; print('RuntimeError: the reason', file=sys.stderr); os.kill(os.getpid(), 11)"


def test_a_child_that_ends_badly_says_how(setting):
    ended = children.run([sys.executable, "-c", DIES], setting.folder, "one", 60, "cpu")
    assert has_line_naming(ended.why(), "one", "signal 11", "RuntimeError: the reason")


def test_a_child_that_takes_too_long_ends_with_all_that_it_started(setting):
    file = setting.folder / "pid"
    sleeper = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    start = f"subprocess.Popen([sys.executable, '-c', {sleeper!r}], start_new_session=True)"
    code = f"import subprocess, sys, time; {start}; time.sleep(600)"
    ended = children.run([sys.executable, "-c", code], setting.folder, "slow", 3, "cpu")
    assert ended.code is None and has_line_naming(ended.why(), "slow", "3 s")
    assert ended_soon(int(file.read_text())), "the grandchild still runs"


# Real commands, but for what takes minutes: no warm-up, and in verl's place a process that sleeps.
STOPPED = """
import sys
from ascend_quant.commands.app import app
from ascend_quant.demo import training, warmup
from ascend_quant.smoke import training as smoke
smoke.lack = lambda *given: ""
warmup.make_start = lambda choices, folder, on_update: 0.5
training.command = lambda *given: [sys.executable, "-c", {sleeps!r}]
app({arguments!r})
"""


@pytest.mark.parametrize(
    "arguments", [["smoke", "--device", "cpu", "--only", "train", "--json"], ["demo", "--arms", "int8", "--out", "o"]]
)
def test_a_command_that_is_asked_to_stop_ends_what_it_started(tmp_path, arguments):
    """Unlike Ctrl-C, SIGTERM ends a Python process at once, unless it does something about it."""
    file = tmp_path / "pid"
    sleeps = f"import os, pathlib, time; pathlib.Path({str(file)!r}).write_text(str(os.getpid())); time.sleep(600)"
    asked = subprocess.Popen(
        [sys.executable, "-c", STOPPED.format(sleeps=sleeps, arguments=arguments)],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    while not (file.is_file() and file.read_text()):
        assert asked.poll() is None, asked.stderr.read()
        time.sleep(0.1)
    asked.send_signal(signal.SIGTERM)
    assert asked.wait(60) != 0
    assert ended_soon(int(file.read_text())), "what it started still runs"


def test_children_have_the_stack_s_environment_and_no_network(setting, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "3")  # the user's own wins
    for name in children.OFFLINE:
        monkeypatch.delenv(name, raising=False)
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    ended = children.run([sys.executable, "-c", code], setting.folder, "one", 60, "cpu")
    found = json.loads(ended.log.read_text())
    wanted = {"VLLM_CPU_KVCACHE_SPACE": "3", "VERL_PLATFORM": "cpu"} | children.OFFLINE
    assert {name: found[name] for name in wanted} == wanted


def carried_out(setting: Setting, wanted: list[Probe], monkeypatch) -> list[Result]:
    """The results of these probes, and of nothing else."""
    monkeypatch.setattr(parts, "probes_for", lambda device, names=(): wanted)
    tested = Parts(replace(setting, doctor=False), Console(quiet=True))
    tested.run([one.name for one in wanted])
    return [*tested.results.values()]


def test_a_probe_that_ends_its_process_is_a_result_and_the_others_go_on(setting, monkeypatch):
    """A slow one has a process of its own."""
    asked = []

    def answer(command, folder, name, limit, stack):
        out, names = command[4], command[5].split(",")
        asked.append(names)
        done = names[: names.index("a.dies")] if "a.dies" in names else names
        content = results.document([Result(one, "", OK) for one in done], {})
        Path(out).write_text(results.as_text(content))
        log = folder / f"{name}.log"
        log.write_text("RuntimeError: aicore error\n")
        return Ended(-6 if len(done) < len(names) else 0, 1.0, log)

    monkeypatch.setattr(shared, "run", answer)
    wanted = [probe(name=name, slow=name == "b.slow") for name in ("a.one", "a.dies", "a.two", "b.slow")]
    found = carried_out(setting, wanted, monkeypatch)
    assert asked == [["a.one", "a.dies", "a.two"], ["a.two"], ["b.slow"]]
    assert [(one.name, one.status) for one in found] == [
        ("a.one", OK), ("a.dies", FAILED), ("a.two", OK), ("b.slow", OK)
    ]  # fmt: skip
    assert has_line_naming(found[1].reason, "signal 6", "aicore error") and found[1].broke


def test_a_probe_that_hangs_is_named_and_no_folder_of_this_host_is_in_what_is_sent(setting, monkeypatch):
    """A real process, ended as carry_out ends it."""
    hangs = "import faulthandler, sys, time; faulthandler.dump_traceback_later(0.2, exit=True); time.sleep(60)"
    monkeypatch.setattr(shared, "run", lambda command, *rest: children.run([sys.executable, "-c", hangs], *rest))
    (found,) = carried_out(setting, [probe()], monkeypatch)
    assert found.status == FAILED and has_line_naming(found.reason, "60 s", "a.one ended with 1", "a.one.log")
    assert str(setting.folder) not in found.reason


def test_a_process_that_hangs_before_its_first_probe_costs_the_time_of_all_once(setting, monkeypatch):
    """As where a driver does not answer; the parts after it are tried."""
    asked = []

    def answer(command, folder, name, limit, stack):
        asked.append(name)
        return children.run(["sleep", "60"], folder, name, 0.3, stack)

    monkeypatch.setattr(shared, "run", answer)
    wanted = [probe(), probe(name="a.two"), probe(name="b.slow", slow=True), probe(name="c.slow", slow=True)]
    found = carried_out(setting, wanted, monkeypatch)
    assert asked == ["a.one", "b.slow", "c.slow"]
    assert [one.name for one in found] == ["a.one", "a.two", "b.slow", "c.slow"]
    assert all(one.status == FAILED and one.broke and "was ended after" in one.reason for one in found)


# ---- the doctor, training, all together
def test_errors_of_the_doctor_fail_and_its_warnings_do_not(setting, monkeypatch):
    fine = Finding("ok", "devices.health", "all OK", "")
    warning = Finding("warning", "system.disk", "2 GiB free", "free some")
    error = Finding("error", "system.shm", "64 MiB", "--shm-size=4g")
    for findings, status in (([fine, warning], OK), ([error, fine, warning], FAILED)):
        report = Report([HostReport("this machine", findings, {"Python": "3.11.7"})])
        (setting.folder / "report.json").write_text(report.as_json())
        monkeypatch.setattr(parts, "DOCTORS", ("sh", "-c", "cat report.json"))
        found = parts.doctor(setting)
        assert found.status == status and asdict(warning) in found.values["findings"]
    assert found.reason == "system.shm: 64 MiB (--shm-size=4g)" and found.values["error"] == 1


@pytest.mark.parametrize(("command", "named"), [(("false",), "ended with 1"), (("sleep", "60"), "ended after")])
def test_a_doctor_that_ends_or_hangs(setting, monkeypatch, command, named):
    monkeypatch.setattr(parts, "DOCTORS", ("sh", "-c", " ".join(command)))
    monkeypatch.setattr(parts, "DOCTOR_S", 1)
    found = parts.doctor(setting)
    assert found.status == FAILED and found.broke and named in found.reason


@pytest.mark.parametrize(
    ("stack", "available", "free", "named"),
    [
        ("cpu", 8, None, ()),
        ("cpu", 5, None, ("8 GiB", "5.0")),
        ("cuda13", 99, 9, ()),
        ("cuda13", 99, 3, ("8 GiB", "device", "3.0")),
        ("ascend-cann8.5", 99, 9, ("ascend-cann9.1",)),
    ],
)
def test_what_a_training_needs_is_looked_at_before(setting, stack, available, free, named):
    versions = Result("versions", "", OK, values={"free and total bytes": [(free or 0) * GIB, 64 * GIB]})
    found = training.lack(replace(setting, stack=stack), available * GIB, versions)
    assert bool(found) == bool(named) and (not named or has_line_naming(found, *named))


def test_a_device_that_cannot_be_used_trains_nothing(setting, monkeypatch):
    monkeypatch.setattr(training, "memory_here", lambda: (99 * GIB, 99 * GIB))
    broken = {"versions": Result("versions", "", FAILED, reason="RuntimeError: no driver")}
    found = training.train(replace(setting, stack="cuda13"), broken)
    assert [(one.name, one.status) for one in found] == [(name, NOT_APPLICABLE) for name in TRAINED]
    assert "no driver" in found[0].reason


@pytest.fixture
def trained(setting, monkeypatch):
    """The results of a training that has logged this, and has ended so."""

    def made(metrics: str, log: str, code: int) -> list[Result]:
        (setting.folder / "metrics.jsonl").write_text(metrics)
        (setting.folder / "verl.log").write_text(log)
        monkeypatch.setattr(training, "trained", lambda setting: Ended(code, 60.0, setting.folder / "verl.log"))
        monkeypatch.setattr(training, "lack", lambda *given: "")
        return training.train(setting, {})

    return made


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([logged(1), logged(2)], ""),
        ([logged(1)], "1 of 2 steps"),
        ([], "0 of 2 steps"),
        ([logged(1), logged(2, **{"critic/rewards/mean": float("nan")})], "not finite: reward"),
        ([logged(1), logged(2, **{"refit/verified": 0})], "step 2"),
        ([logged(1), logged(2, **{"rollout_corr/k3_kl": 0.5})], "mismatch KL is 0.5"),
        ([logged(1), '{"step": 2, "data": {"timing_s/step": 1}}\n'], "has no critic/rewards/mean"),
    ],
)
def test_what_training_logged(setting, trained, lines, reason):
    found, _ = trained("".join(lines), "RuntimeError: the reason\n", 0)
    assert found.status == (FAILED if reason else OK) and reason in found.reason
    assert found.broke == ("of 2 steps" in reason or "has no" in reason)
    if not reason:
        assert found.values["steps"] == 2 and found.values["weight sync, ms"] == 250


REFUSAL = f"RefitError: weight sync failed: {SPOILT}: 1 of 32768 elements are NaN or Inf\n"


@pytest.mark.parametrize(
    ("lines", "code", "said", "status", "broke"),
    [
        (2, 1, REFUSAL, OK, False),
        (3, 0, "", FAILED, False),  # it went on
        (2, 1, "RuntimeError: out of memory\n", FAILED, True),
        (2, 1, REFUSAL.replace("layers.0", "layers.1"), FAILED, True),
        (1, 1, REFUSAL, FAILED, True),
    ],
)
def test_the_nan_after_the_steps(trained, lines, code, said, status, broke):
    steps, refused = trained("".join(logged(step) for step in range(1, lines + 1)), said, code)
    assert steps.status == (OK if lines >= 2 else FAILED)
    assert (refused.name, refused.status, refused.broke) == ("train.nan", status, broke)


def test_a_warm_up_that_fails_is_a_result(setting, monkeypatch):
    def fails(*given):
        raise DemoError("the cores are busy")

    monkeypatch.setattr(warmup, "write_inputs", fails)
    monkeypatch.setattr(training, "lack", lambda *given: "")
    found = training.train(setting, {})
    assert [(one.status, one.broke) for one in found] == [(FAILED, True)] * 2 and "busy" in found[0].reason


@pytest.mark.parametrize(
    ("stack", "libraries", "ray"),
    [
        ("ascend-cann9.1", [training.PLANTED], {"resources": {"NPU": 1}}),
        ("cuda13", [training.LIBRARY, training.PLANTED], {"num_gpus": 1}),  # the attention of its stack stays
    ],
)
def test_devices_train_with_graphs_and_sleep_and_one_step_more_for_the_nan(setting, stack, libraries, ray):
    made = composed(replace(setting, stack=stack, steps=3))
    model, rollout = made.actor_rollout_ref.model, made.actor_rollout_ref.rollout
    assert model.external_lib == libraries
    assert not rollout.enforce_eager and rollout.free_cache_engine and rollout.enable_sleep_mode
    assert (made.trainer.total_training_steps, made.trainer.nnodes, made.trainer.n_gpus_per_node) == (4, 1, 1)
    assert ray.items() <= made.ray_kwargs.ray_init.items()
    assert made.trainer.device == {"ascend-cann9.1": "npu", "cuda13": "cuda"}[stack]


def composed(setting: Setting):
    """verl's whole configuration, as its command line makes it."""
    register()
    words = [f"stack={setting.stack}", "+recipe=addition-int8"]
    told = command(words, training.settings_of(setting))[len(MAIN) :]
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=told)


def test_the_stack_of_a_device(monkeypatch):
    assert [stack_of(device) for device in ("cpu", "cuda")] == ["cpu", "cuda13"]
    for version, stack in (("2.7.1", "ascend-cann8.5"), ("2.10.0.post4", "ascend-cann9.1")):
        monkeypatch.setattr(shared, "version", lambda name, version=version: version)
        assert stack_of("npu") == stack
        assert Setting(stack, Path("."), 1).device == "npu"


@pytest.fixture
def order(monkeypatch):
    """The parts that are begun, all of which are well."""
    found = []

    def told(*names: str) -> list[Result]:
        found.extend(names)
        return [Result(name, "", OK) for name in names]

    monkeypatch.setattr(parts, "together", lambda setting, wanted: told(*(one.name for one in wanted)))
    monkeypatch.setattr(parts, "doctor", lambda setting: told("doctor")[0])
    monkeypatch.setattr(parts, "train", lambda setting, earlier: told(*TRAINED))
    return found


def started(setting: Setting, *wanted: str, **more) -> dict:
    return Parts(setting, Console(quiet=True), **more).run(wanted)


TRAINED = ["train", "train.nan"]
EVERYTHING = ["doctor", "versions", "libraries", "operators.schemes", *TRAINED, "engine.refit"]  # on a CPU


def test_training_comes_before_engines(setting, order):
    content = started(setting)
    assert order == EVERYTHING and content["left"] == [] and content["ok"]
    order.clear()
    content = started(setting, "train", "operators")
    assert order == ["operators.schemes", *TRAINED]
    assert content["left"] == ["doctor", "versions", "libraries", "engine.refit"]


def test_a_second_start_goes_on_where_the_first_one_stopped(setting, order, monkeypatch):
    kept = []

    class Stopped(Exception):
        pass

    def dies(setting, earlier):
        raise Stopped

    with monkeypatch.context() as there:
        there.setattr(parts, "train", dies)
        with pytest.raises(Stopped):
            started(setting, keep=kept.append)
    before = json.loads(results.as_text(kept[-1]))
    assert before["left"] == [*TRAINED, "engine.refit"] and parts.differences(before, setting) == []
    order.clear()
    content = started(setting, before=before)
    assert order == [*TRAINED, "engine.refit"] and content["left"] == []
    assert content["started"] == before["started"] and len(content["probes"]) == len(EVERYTHING)
    assert parts.differences(before, replace(setting, steps=3)) == ["steps 2"]
    assert parts.differences(before | {"schema": 1}, setting) == ["schema 1"]
    other = parts.differences(before, replace(setting, stack="cuda13"))
    assert other == ["stack cpu", "device cpu"]


def test_what_is_named_is_tried_anew_and_what_did_not_apply_too(setting, order):
    before = started(setting)
    before["probes"][1] |= {"status": NOT_APPLICABLE}
    before["probes"][2] |= {"status": FAILED}
    order.clear()
    assert len(started(setting, "engine", before=before)["probes"]) == len(EVERYTHING) and order == ["engine.refit"]
    order.clear()
    assert not started(setting, before=before)["ok"] and order == ["versions"]


def test_the_end_of_all_time_leaves_the_rest_for_the_next_start(setting, monkeypatch):
    """What it breaks off has no result; what went wrong by itself has one."""

    def hangs(command, folder, name, limit, *rest):
        asked.append(limit)
        time.sleep(limit)
        return Ended(None, limit, folder / "log")

    asked = []
    (setting.folder / "log").write_text("")
    monkeypatch.setattr(shared, "run", hangs)
    short = replace(setting, ends=time.monotonic() + 0.2)
    content = started(short, "doctor", "operators")
    assert len(asked) == 1 and asked[0] <= 0.2
    assert content["probes"] == [] and sorted(content["left"]) == sorted(EVERYTHING)


def test_all_limits_of_one_npu_are_within_an_hour_and_stand_on_the_pages():
    of_one = [one for one in probes.probes_for("npu") if one.ranks == 1]
    starts = 1 + sum(one.slow for one in of_one)  # quick ones share a process
    trained = training.DATA_S + training.TRAIN_S["npu"]
    seconds = parts.DOCTOR_S + trained + starts * parts.START_S + sum(one.limit_s for one in of_one)
    assert seconds <= 3600
    for name in ("ascend.md", "ascend.zh.md"):
        page = (Path(__file__).parents[2] / "docs" / name).read_text()
        minutes = [float(one) for one in re.findall(r"^\| [^|]* \| ([\d.]+) \| [^|]* \|$", page, re.M)]
        assert 60 * sum(minutes) == seconds


def test_probes_that_take_more_devices_than_there_are(setting, monkeypatch, order):
    """They are known from the probe that looks at the device."""
    tested = Parts(replace(setting, stack="ascend-cann9.1"), Console(quiet=True))
    tested.results["versions"] = Result("versions", "", OK, values={"devices": 1})
    tested.run(["engine.ranks", "engine.experts"])
    found = [tested.results[name] for name in ("engine.ranks", "engine.experts")]
    assert order == [] and {one.status for one in found} == {NOT_APPLICABLE}
    assert has_line_naming(found[1].reason, "4 devices", "1")


def called(*arguments: str, **variables):
    return CliRunner(env={"ASCEND_QUANT_STACK": "cpu"} | variables).invoke(app, ["smoke", *arguments])


@pytest.mark.parametrize(
    ("arguments", "variables", "named"),
    [
        (["--only", "refits"], {}, ("refits", "operators.schemes", "train, train.nan")),
        (["--out", "/nowhere/a.json"], {}, ("/nowhere",)),
        (["--out", "."], {}, ("--out",)),
        (["--device", "quantum"], {}, ("quantum",)),
        (["--device", "cuda"], {}, ("--device cuda", "--device cpu")),
        (["--checkpoints", "one", "two"], {}, ("one: has no config.json",)),
        ([], {"ASCEND_QUANT_STACK": "cuda12"}, ("ASCEND_QUANT_STACK=cuda12",)),
    ],
)
def test_wrong_use_is_said_before_anything_starts(arguments, variables, named):
    done = called(*arguments, **variables)
    assert done.exit_code == 2 and has_line_naming(done.stderr, *named)


@pytest.mark.parametrize("status", [OK, FAILED])
def test_the_json_goes_to_stdout_alone_or_into_smoke_json(tmp_path, monkeypatch, status):
    monkeypatch.chdir(tmp_path)
    values = {"steps": 5}

    def trained(setting, earlier):
        return [Result(name, "", status, values={"steps": setting.steps}) for name in TRAINED]

    monkeypatch.setattr(parts, "train", trained)
    done = called("--json", "--steps", "5", "--only", "train")
    assert done.exit_code == (status == FAILED)
    content = json.loads(done.stdout)
    assert content["probes"][0]["values"] == values and content["stack"] == "cpu"
    called("--only", "train")
    assert json.loads((tmp_path / "smoke.json").read_text())["ok"] == (status == OK)
    left = list(Path(tempfile.gettempdir()).glob("aq-smoke-*"))
    assert len(left) == 2 * (status == FAILED), "what failed leaves its logs"
    (tmp_path / "smoke.json").unlink()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert json.loads(called("--only", "train").stdout)["probes"] and not (tmp_path / "smoke.json").exists()


def test_the_same_command_goes_on_with_its_file(tmp_path, monkeypatch, order):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(parts, "train", lambda setting, earlier: [])  # as where time ran out
    done = called("--doctor")
    assert done.exit_code == 3 and json.loads(Path("smoke.json").read_text())["left"] == TRAINED
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(parts, "train", lambda setting, earlier: [Result(name, "", OK) for name in TRAINED])
    assert called("--doctor").exit_code == 0
    content = json.loads(Path("smoke.json").read_text())
    assert content["left"] == [] and len(content["probes"]) == len(EVERYTHING)
    done = called("--steps", "5")
    assert has_line_naming(done.stdout, "smoke.json", "steps 3")
    for other in ("no JSON", "[]", '{"name": "of someone else"}'):
        Path("smoke.json").write_text(other)
        done = called()
        assert done.exit_code == 2 and has_line_naming(done.stderr, "--out smoke.json")
        assert Path("smoke.json").read_text() == other


def test_a_file_that_cannot_be_written_is_one_line(monkeypatch):
    monkeypatch.setattr(parts, "train", lambda setting, earlier: [Result("train", "", OK)])
    done = called("--out", "/dev/full", "--only", "train")
    assert done.exit_code == 1 and has_line_naming(done.stderr, "--out /dev/full")
