"""`run.sh smoke` without an engine: what parts make of what their programs say, however these end, and the one JSON."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from naming import has_line_naming
from rich.console import Console
from typer.testing import CliRunner

from launch.cli import app
from launch.doctor.facts import GIB, Device, Devices
from launch.smoke import child as children
from launch.smoke import models, parts, run
from launch.smoke.child import FAILED, NOT_APPLICABLE, OK, Ended, Result, Setting, judged, not_applicable

REFIT = {
    "problems": [],
    "seconds": 9.0,
    "receipt": {"tensors": 27, "milliseconds": 1.5, "digest": "0123456789abcdef"},
}
ENGINE = {
    "scheme": "int8",
    "graphs": False,
    "machine": {"device": "cpu"},
    "refit": REFIT,
    "generate": {
        "problems": ["prompt 1: token 7 is 3, the fresh engine's 4"],
        "seconds": 5.0,
        "prompts": 4,
        "tokens": 32,
    },
}
FINDING = {"level": "ok", "check": "devices.health", "what": "all OK", "fix": ""}


@pytest.fixture(autouse=True)
def logs_that_stay_go_with_the_test(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting("cpu", "none", tmp_path, 2)


def quiet() -> Console:
    return Console(stderr=True, quiet=True)


def answering(monkeypatch, module, answers: dict, code: int | None = 0) -> list[list[str]]:
    """In the place of real programs: each `run` writes the JSON of its name, and ends with the code."""
    asked = []

    def answer(setting, name, command, limit, variables=None, apart=False):
        asked.append(command)
        output, log = setting.folder / f"{name}.out", setting.folder / f"{name}.log"
        log.write_text("ValueError: it is broken\n")
        if name in answers:
            target = Path(command[command.index("--out") + 1]) if "--out" in command and not apart else output
            target.write_text(json.dumps(answers[name]))
        return Ended(code, 1.5, output, log)

    monkeypatch.setattr(module, "run", answer)
    return asked


def smoked(monkeypatch, *parts) -> dict:
    monkeypatch.setattr(run, "GROUPS", tuple(parts))
    names = [name for group, _ in parts for name in group]
    return run.smoke("cpu", "none", 3, names, quiet())


def test_a_part_that_breaks_does_not_stop_the_others(monkeypatch):
    def broken(setting):
        raise ZeroDivisionError("by zero")

    content = smoked(
        monkeypatch,
        (("doctor",), lambda setting: [Result("doctor", OK, 1.0, figures={"steps": setting.steps})]),
        (("refit", "generate"), broken),
        (("train",), lambda setting: [not_applicable("train", "too little memory")]),
    )
    parts = {one["name"]: one for one in content["parts"]}
    assert [one["status"] for one in content["parts"]] == [OK, FAILED, FAILED, NOT_APPLICABLE]
    assert "ZeroDivisionError: by zero" in parts["generate"]["reason"]
    assert parts["doctor"]["figures"] == {"steps": 3} and not content["ok"]


def test_what_is_not_applicable_does_not_fail(monkeypatch):
    content = smoked(monkeypatch, (("train",), lambda setting: [not_applicable("train", "too little memory")]))
    assert content["ok"] and content["parts"][0]["reason"] == "too little memory"


def test_numbers_that_json_has_not_are_text(monkeypatch):
    figures = {"a": [float("nan"), 1.5], "b": (float("-inf"), True, None)}
    content = smoked(monkeypatch, (("doctor",), lambda setting: [Result("doctor", OK, figures=figures)]))
    assert json.loads(run.as_text(content))["parts"][0]["figures"] == {"a": ["nan", 1.5], "b": ["-inf", True, None]}


def test_logs_stay_where_something_failed_alone(monkeypatch):
    folders = []

    def part(status):
        return (("doctor",), lambda setting: folders.append(setting.folder) or [Result("doctor", status)])

    smoked(monkeypatch, part(OK))
    smoked(monkeypatch, part(FAILED))
    assert [folder.is_dir() for folder in folders] == [False, True]
    folders[1].rmdir()


def test_a_child_s_json_comes_apart_from_what_it_logs(setting):
    code = "import sys; print('{\"a\": 1}'); print('a warning', file=sys.stderr)"
    ended = children.run(setting, "one", [sys.executable, "-c", code], 60, apart=True)
    assert ended.code == 0 and ended.json() == {"a": 1}
    assert ended.log.read_text() == "a warning\n"


def test_a_child_that_prints_no_json_says_what(setting):
    ended = children.run(setting, "one", [sys.executable, "-c", "print('INFO here is'); print('{}')"], 60, apart=True)
    assert ended.code == 0 and ended.json() is None
    assert has_line_naming(ended.why(), "one", "with 0", "no JSON: 'INFO here is\\n{}\\n'")


def test_a_child_that_a_signal_kills_says_which(setting):
    code = "import os, sys; print('RuntimeError: the reason', flush=True); os.kill(os.getpid(), 11)"
    ended = children.run(setting, "engine", [sys.executable, "-c", code], 60)
    assert ended.code == -signal.SIGSEGV and ended.json() is None
    assert has_line_naming(ended.why(), "engine", "signal 11") and "RuntimeError: the reason" in ended.why()


def ended_soon(pid: int) -> bool:
    deadline = time.monotonic() + 30
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_smoke_that_is_asked_to_stop_ends_what_it_started(tmp_path, number):
    """Unlike Ctrl-C these signals end a Python process at once, unless it does something about it."""
    file = tmp_path / "pid"
    code = f"import os, pathlib, time; pathlib.Path({str(file)!r}).write_text(str(os.getpid())); time.sleep(600)"
    smoking = f"""
import sys
from launch.cli import app
from launch.smoke import child, run
run.GROUPS = ((("doctor",), lambda setting: child.run(setting, "slow", [sys.executable, "-c", {code!r}], 600)),)
app(["smoke", "--only", "doctor", "--json"])
"""
    smoke = subprocess.Popen(
        [sys.executable, "-c", smoking], stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    while not (file.is_file() and file.read_text()):
        assert smoke.poll() is None, smoke.stderr.read()
        time.sleep(0.1)
    smoke.send_signal(number)
    assert smoke.wait(60) != 0
    pid = int(file.read_text())
    if not ended_soon(pid):
        os.kill(pid, signal.SIGKILL)
        pytest.fail("what smoke started still runs")


def test_a_child_that_takes_too_long_ends_with_all_that_it_started(setting):
    sleeper = f"import os, time; open({str(setting.folder / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    start = f"subprocess.Popen([sys.executable, '-c', {sleeper!r}], start_new_session=True)"
    code = f"import subprocess, sys, time; {start}; time.sleep(600)"
    file = setting.folder / "pid"
    ended = children.run(setting, "slow", [sys.executable, "-c", code], 3)
    assert ended.code is None and has_line_naming(ended.why(), "slow", "3 s")
    assert ended_soon(int(file.read_text())), "the grandchild still runs"


def test_children_have_the_stack_s_environment_and_no_network(setting, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "3")  # the user's own wins
    for name in children.OFFLINE:
        monkeypatch.delenv(name, raising=False)
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    found = children.run(setting, "one", [sys.executable, "-c", code], 60, {"MORE": "1"}, apart=True).json()
    wanted = {"VLLM_CPU_KVCACHE_SPACE": "3", "VERL_PLATFORM": "cpu", "MORE": "1"} | children.OFFLINE
    assert {name: found[name] for name in wanted} == wanted


def test_errors_of_the_doctor_fail_and_its_warnings_do_not(setting, monkeypatch):
    warning = FINDING | {"level": "warning", "check": "system.disk", "what": "2 GiB free", "fix": "free some"}
    error = FINDING | {"level": "error", "check": "system.shm", "what": "64 MiB", "fix": "--shm-size=4g"}
    for findings, status in (([FINDING, warning], OK), ([error, FINDING, warning], FAILED)):
        report = {"hosts": [{"findings": findings, "traits": {"Python": "3.11.7"}}]}
        answering(monkeypatch, parts, {"doctor": report}, code=int(status == FAILED))
        (result,) = parts.doctor(setting)
        assert result.status == status and warning in result.figures["findings"]
    assert result.reason == "system.shm: 64 MiB (--shm-size=4g)" and result.short == "1 error, 1 warning, 1 ok"


def test_the_manifest_in_short(setting, monkeypatch):
    monkeypatch.setenv("ASCEND_QUANT_STACK", "cpu")
    packages = {"torch": {"version": "2.13.0+cpu", "commit": None}, "unknown": {"version": "1", "commit": None}}
    found = {"stack": "cpu", "chip": None, "revision": "abc", "packages": packages, "system_packages": {"a": "1"}}
    answering(monkeypatch, parts, {"manifest": found})
    (result,) = parts.manifest(setting)
    assert result.status == OK and result.short == "cpu abc"
    assert result.figures == {"stack": "cpu", "chip": None, "revision": "abc", "packages": {"torch": "2.13.0+cpu"}}
    monkeypatch.delenv("ASCEND_QUANT_STACK")
    assert parts.manifest(setting)[0].status == NOT_APPLICABLE


def test_what_the_kernels_say(setting, monkeypatch):
    fine = {"scheme": "int8", "problems": [], "refused": ""}
    refused = {"scheme": "fp8", "problems": [], "refused": "no FP8"}
    wrong = {"scheme": "int4_g32", "problems": ["448 x 512: 3 codes differ"], "refused": ""}
    for checked, status in (([fine, refused], OK), ([fine, wrong], FAILED)):
        answering(monkeypatch, parts, {"operators": {"checked": checked}}, code=int(status == FAILED))
        (result,) = parts.operators(setting)
        assert result.status == status and "fp8" not in result.short
    assert result.reason == "int4_g32: 448 x 512: 3 codes differ" and result.short == "cpu: int8, int4_g32"


@pytest.mark.parametrize(
    ("code", "answers", "reason"), [(0, True, ""), (1, True, "quantize.nz: other codes"), (2, False, "")]
)
def test_npus_have_a_test_of_their_own(tmp_path, monkeypatch, code, answers, reason):
    bad = [reason.partition(":")[0]] if reason else []
    found = {"summary": {"proved": 9, "refuted": len(bad), "missing": 0, "fact": 3, "needed and failed": bad}}
    found["checks"] = [{"name": "quantize.nz", "reason": "other codes" if bad else ""}]
    asked = answering(monkeypatch, parts, {"operators": found} if answers else {}, code=code)
    (result,) = parts.operators(Setting("ascend-cann9.1", "npu", tmp_path, 3))
    assert asked[0][1:3] == ["-m", "npu_smoke"] and "speed" not in asked[0]
    assert result.status == (OK if code == 0 else FAILED)
    assert reason in result.reason if answers else "ended with 2" in result.reason


def test_one_engine_answers_two_parts(setting, monkeypatch):
    asked = answering(monkeypatch, parts, {"engine": ENGINE})
    refit, generate = parts.engine(setting)
    assert (refit.status, generate.status) == (OK, FAILED) and "token 7" in generate.reason
    assert refit.figures["receipt"] == REFIT["receipt"] and refit.figures["machine"] == {"device": "cpu"}
    assert "--graphs" not in asked[1]


def test_an_engine_that_dies_fails_both_with_its_last_words(tmp_path, monkeypatch):
    asked = answering(monkeypatch, parts, {}, code=0)
    results = parts.engine(Setting("cuda13", "gpu", tmp_path, 3))
    assert [one.status for one in results] == [FAILED, FAILED] and "it is broken" in results[0].reason
    assert "--graphs" in asked[1]


def test_memory_is_asked_for_before_training():
    h200 = Device(0, "NVIDIA H200", "OK", 140000, 143771)
    assert parts.lack(8, 8, 8 * GIB, Devices()) == ""
    assert parts.lack(8, 8, 5 * GIB, Devices()) == "training needs 8 GiB of memory, 5.0 are available"
    assert "8 GiB of device 0, 3.7 are free" in parts.lack(8, 8, 99 * GIB, Devices("nvidia-smi", found=(h200,)))
    assert "npu-smi is not on PATH" in parts.lack(8, 8, 99 * GIB, Devices("npu-smi", "npu-smi is not on PATH"))


def logged(step: int, reward: float = 0.5) -> str:
    names = ("critic/rewards/mean", "rollout_corr/k3_kl", "rollout_corr/rollout_is_mean", "rollout_corr/rollout_is_max")
    names += ("rollout_corr/rollout_is_eff_sample_size", "timing_s/step", "timing_s/update_weights", "refit/tensors")
    data = dict.fromkeys(names, 0.25) | {"critic/rewards/mean": reward}
    return json.dumps({"step": step, "data": data}) + "\n"


@pytest.mark.parametrize(
    ("lines", "status", "reason"),
    [
        ([logged(1), logged(2)], OK, ""),
        ([logged(1)], FAILED, "1 of 2 steps"),
        ([], FAILED, "0 of 2 steps"),
        ([logged(1), logged(2, float("nan"))], FAILED, "not finite: reward"),
        ([logged(1), '{"step": 2, "data": {"timing_s/step": 1}}\n'], FAILED, "has no critic/rewards/mean"),
    ],
)
def test_what_training_logged(setting, monkeypatch, lines, status, reason):
    metrics = setting.folder / "metrics.jsonl"
    metrics.write_text("".join(lines))
    ended = Ended(0, 60.0, metrics, setting.folder / "train.log")
    monkeypatch.setattr(parts, "_on_cpu", lambda setting: (ended, metrics))
    monkeypatch.setattr(parts, "lack", lambda *given: "")
    (result,) = parts.train(setting)
    assert result.status == status and reason in result.reason
    if status == OK:
        assert result.figures["receipts"] == [{"tensors": 0.25}] * 2 and "weight sync 250 ms" in result.short


def called(*arguments: str, **variables):
    return CliRunner(env={"ASCEND_QUANT_STACK": None} | variables).invoke(app, ["smoke", *arguments])


def test_wrong_use_is_said_before_anything_starts(tmp_path):
    for arguments, variables, said in (
        (["--only", "refits"], {}, "--only refits: "),
        (["--out", str(tmp_path / "missing" / "a.json")], {}, "missing"),
        (["--out", "x" * 300], {}, "--out"),
        (["--out", str(tmp_path)], {}, "is a folder"),
        ([], {"ASCEND_QUANT_STACK": "cuda12"}, "ASCEND_QUANT_STACK=cuda12"),
    ):
        result = called(*arguments, **variables)
        assert result.exit_code == 2 and said in result.stderr


@pytest.mark.parametrize("ok", [True, False])
def test_the_json_goes_to_stdout_alone_or_into_smoke_json(tmp_path, monkeypatch, ok):
    monkeypatch.chdir(tmp_path)
    fake = (("train",), lambda setting: [judged("train", [] if ok else ["bad"], 1.0, "", {"steps": setting.steps})])
    monkeypatch.setattr(run, "GROUPS", (fake,))
    result = called("--json", "--steps", "5", "--only", "train")
    assert result.exit_code == (0 if ok else 1)
    content = json.loads(result.stdout)
    assert content["ok"] == ok and content["parts"][0]["figures"] == {"steps": 5} and content["stack"] == "cpu"
    called()
    assert json.loads((tmp_path / "smoke.json").read_text())["ok"] == ok


def test_a_file_that_cannot_be_written_is_one_line(monkeypatch):
    monkeypatch.setattr(run, "GROUPS", ((("train",), lambda setting: [Result("train", OK)]),))
    result = called("--out", "/dev/full")
    assert result.exit_code == 1 and result.stderr.startswith("--out /dev/full: ")


def test_a_folder_that_cannot_be_written_gets_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "GROUPS", ((("train",), lambda setting: [Result("train", OK)]),))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    result = called()
    assert result.exit_code == 0 and json.loads(result.stdout)["ok"] and not (tmp_path / "smoke.json").exists()


def test_both_checkpoints_are_the_same_everywhere_and_differ(tmp_path):
    from safetensors.torch import load_file

    for folder in ("one", "other"):
        models.write(tmp_path / folder)
    one, other = ((tmp_path / folder / "then" / "model.safetensors") for folder in ("one", "other"))
    assert one.read_bytes() == other.read_bytes()
    start, then = (load_file(tmp_path / "one" / name / "model.safetensors") for name in ("start", "then"))
    assert start.keys() == then.keys() and any((start[name] != then[name]).any() for name in start)
