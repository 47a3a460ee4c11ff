"""`run.sh smoke` and `ascend-quant smoke` without an engine: what is wrong is named, however a process ends."""

import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from naming import has_line_naming
from plan_cases import inventory, plan
from rich.console import Console
from safetensors.torch import load_file
from typer.testing import CliRunner

from ascend_quant import oracle
from ascend_quant.cli import app as commands
from ascend_quant.kernels import cpu
from ascend_quant.refit import Refit
from ascend_quant.refit.resident import QuantizedWeight, ResidentWeight
from ascend_quant.schemes import SCHEMES
from ascend_quant.smoke import engine, installed, operators, probes, results
from ascend_quant.smoke.probes import NotPossible, On, Probe, Seen, carry_out
from ascend_quant.smoke.results import FAILED, NOT_APPLICABLE, OK, Result
from launch import child as children
from launch import smoke
from launch.child import Ended
from launch.commands import app
from launch.doctor.checking import Finding, HostReport, Report
from launch.doctor.facts import GIB, Device, Devices
from launch.smoke import Setting

CPU = On(torch.device("cpu"))


@pytest.fixture(autouse=True)
def logs_that_stay_go_with_the_test(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting("cpu", "none", tmp_path, 2)


def probe(function=lambda on: Seen({"a": 1}), name: str = "a.one", slow: bool = False) -> Probe:
    return Probe(name, "what it decides", function, ("cpu",), slow, 60)


# ---- a probe
def test_what_a_probe_sees_refuses_or_raises_is_its_result(tmp_path):
    def wrong(on):
        seen = Seen({"differ": 1})
        seen.same("codes", torch.tensor([1, 2, 3]), torch.tensor([1, 5, 3]))
        seen.same("NaN", torch.tensor([float("nan")]), torch.tensor([float("nan")]))
        seen.holds(False, f"it moved to {tmp_path / 'x.so'}")
        return seen

    def missing(on):
        raise NotPossible("there is no vLLM")

    found = carry_out(probe(wrong), CPU)
    assert found.status == FAILED and found.values == {"differ": 1}
    assert has_line_naming(found.reason, "codes: 1 of 3 differ", "number 1: 2", "5", "moved to x.so")
    assert carry_out(probe(lambda on: 1 / 0), CPU).reason == "ZeroDivisionError: division by zero"
    assert carry_out(probe(missing), CPU).status == NOT_APPLICABLE and carry_out(probe(), CPU).status == OK


def test_numbers_that_json_has_not_are_text_and_a_failure_is_not_ok():
    values = {"a": [float("nan"), 1.5], 2: (float("-inf"), True, None, torch.float32)}
    content = results.document([Result("x", "", OK, values=values), Result("y", "", NOT_APPLICABLE)], {"stack": "cpu"})
    assert content["ok"] and content["stack"] == "cpu"
    wanted = {"a": ["nan", 1.5], "2": ["-inf", True, None, "torch.float32"]}
    assert json.loads(results.as_text(content))["probes"][0]["values"] == wanted
    assert not results.document([Result("x", "", FAILED)], {})["ok"]


def test_a_name_that_there_is_not_is_refused_with_those_there_are():
    with pytest.raises(probes.UnknownProbe, match=r"operators\.schemes"):
        probes.probes_for("cpu", ["operators.codes"])
    assert [one.name for one in probes.probes_for("npu", ["speed"])] == ["speed.refit", "speed.rollout"]


# ---- operators of this CPU
@pytest.fixture
def of_scheme(monkeypatch):
    """Tries one scheme alone, which takes a sixth of the time."""

    def tried(scheme: str) -> Seen:
        monkeypatch.setattr(cpu, "SERVING", {scheme: cpu.SERVING[scheme]})
        return operators.schemes(CPU)

    return tried


def test_every_scheme_of_this_cpu_passes():
    seen = operators.schemes(CPU)
    assert not seen.problems and set(seen.values) == {one.name for one in SCHEMES.values() if one.quantized}
    assert all(0 < one["product error"] < 0.004 for one in seen.values.values())


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_a_product_that_is_wrong(monkeypatch, of_scheme, factor):
    right = cpu.SERVING["int8"]
    wrong = right._replace(linear=lambda x, *rest: right.linear(x, *rest) * factor)
    monkeypatch.setitem(cpu.SERVING, "int8", wrong)
    (problem,) = of_scheme("int8").problems
    assert has_line_naming(problem, "int8", "products", "0.006")
    assert "nan" in problem if factor != factor else " 0.01" in problem


def test_codes_that_are_wrong_after_they_were_counted(monkeypatch, of_scheme):
    right = cpu.write

    def wrong(batch, counters, receipt=True):
        right(batch, counters, receipt)
        for job in batch:
            for move, _, _ in job.each():
                if move.place is None:
                    move.target_NK.view(torch.int8)[0, 0] ^= 1

    monkeypatch.setattr(cpu, "write", wrong)
    problems = of_scheme("int8").problems
    assert any(has_line_naming(one, "448 x 512: codes: 3 of 229376") for one in problems)  # each shard's first
    assert any("read back" in one for one in problems) and not any("written" in one for one in problems)


def test_values_for_training_that_are_wrong(monkeypatch, of_scheme):
    monkeypatch.setattr(cpu, "fake_quantize", lambda w, scheme: w)
    assert any("dequantized values" in one for one in of_scheme("int4_g32").problems)


def test_a_scheme_that_the_device_refuses(monkeypatch, of_scheme):
    def refuses(scheme, shape):
        raise ValueError("this GPU has no FP8")

    monkeypatch.setattr(cpu, "storage", refuses)
    seen = of_scheme("fp8")
    assert not seen.problems and seen.values["fp8"] == "not here: this GPU has no FP8"


def test_a_library_that_a_compiled_kernel_needs_is_named(tmp_path, monkeypatch):
    """A real shared object, linked with one library that goes away and with one that stays."""
    for name in ("gone", "there"):
        compiled(tmp_path / f"lib{name}.so", f"int {name}(void) {{ return 1; }}")
    kernel = tmp_path / "vllm" / "_C.abi3.so"
    kernel.parent.mkdir()
    source = "int gone(void), there(void); int both(void) { return gone() + there(); }"
    compiled(kernel, source, f"-L{tmp_path}", "-lgone", "-lthere")
    loaded = ctypes.CDLL(str(tmp_path / "libthere.so"))  # as torch has loaded its own
    (tmp_path / "libgone.so").unlink()
    spec = SimpleNamespace(submodule_search_locations=[str(kernel.parent)])
    monkeypatch.setattr(installed, "find_spec", lambda package: spec if package == "vllm" else None)
    assert installed.libraries(CPU).problems == ["vllm/_C.abi3.so needs libgone.so"] and loaded.there() == 1


def compiled(file: Path, source: str, *options: str) -> None:
    """A shared object with a name of its own, as libraries have."""
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(file), f"-Wl,-soname,{file.name}", *options]
    subprocess.run(command, input=source, text=True, check=True, timeout=60)


# ---- what an engine must have and say
def test_the_expected_digest_is_what_a_refit_of_the_same_values_gives():
    """Through kernels and residents on one side, by the oracle on the other; a vocabulary is padded."""
    made = torch.Generator().manual_seed(1)
    shapes = {"q.weight": (6, 32), "k.weight": (2, 32), "norm.weight": (32,), "head.weight": (5, 32)}
    sent = {name: torch.randn(shape, generator=made).bfloat16() for name, shape in shapes.items()}
    qk = QuantizedWeight("qk.weight", torch.zeros(8, 32, dtype=torch.int8), torch.zeros(8, 1), 32)
    norm = ResidentWeight("norm.weight", torch.zeros(32, dtype=torch.bfloat16))
    head = ResidentWeight("head.weight", torch.zeros(8, 32, dtype=torch.bfloat16), padded=True)
    refit = Refit([qk, norm, head])
    views = {"q.weight": (qk, qk.data[:6]), "k.weight": (qk, qk.data[6:])}
    views |= {"norm.weight": (norm, norm.data), "head.weight": (head, head.data[:5])}
    with refit.session():
        for name, (resident, view) in views.items():
            slot = refit.batch.new_sources([(name, sent[name].numel())])
            refit.write(slot, resident, view, sent[name])
        head.fill(head.data[5:], 0, slot)
    parts = {"qk.weight": ["q.weight", "k.weight"]}
    parameters = [
        {
            "parts": parts.get(one.name, [one.name]),
            "weight": one.weight,
            "quantized": bool(one.codes),
            "dtype": "bfloat16",
        }
        for one in refit.residents
    ]

    def expected(parameters: list[dict]) -> str:
        return engine.definition_digest(parameters, sent.__getitem__, SCHEMES["int8"])

    assert expected(parameters) == refit.last_receipt.digest
    swapped = parameters[0] | {"parts": ["k.weight", "q.weight"]}
    assert expected([swapped, *parameters[1:]]) != refit.last_receipt.digest
    wide = {"parts": ["norm.weight"], "weight": 1, "quantized": False, "dtype": "float32"}
    digest = oracle.digest(sent["norm.weight"].float())
    assert expected([wide]) == f"{digest:016x}"


def receipt(digest: str, number: int = 2) -> dict:
    return {"digest": digest, "read_back": digest, "number": number}


@pytest.mark.parametrize(
    ("first", "refitted", "fresh", "named"),
    [
        (receipt("a", 1), receipt("b"), receipt("b"), ()),
        (receipt("a", 1), receipt("c") | {"read_back": "b"}, receipt("b"), ("receipt's: c", "wanted b")),
        (receipt("a", 1), receipt("b") | {"read_back": "c"}, receipt("b"), ("read back: c",)),
        (receipt("a", 1), receipt("b"), receipt("d"), ("fresh engine's: d",)),
        (receipt("a", 2), receipt("b"), receipt("b"), ("no refit",)),
        (receipt("b", 1), receipt("b"), receipt("b"), ("same digest",)),
    ],
)
def test_digests_of_each_rank(first, refitted, fresh, named):
    problems = engine.digest_problems([first], [refitted], [fresh], ["b"], "wanted")
    assert len(problems) == bool(named) and all(has_line_naming(one, *named) for one in problems)
    well = receipt("a", 1), receipt("b"), receipt("b")
    of_two = [[one, other] for one, other in zip(well, (first, refitted, fresh), strict=True)]
    problems = engine.digest_problems(*of_two, ["b", "b"], "wanted")
    assert len(problems) == bool(named) and all(has_line_naming(one, "rank 1", *named) for one in problems)


def test_tokens_that_are_not_the_fresh_engine_s():
    right = [list(range(engine.TOKENS))]
    assert engine.token_problems(right, right) == []
    (problem,) = engine.token_problems([[*right[0][:-1], 99]], right)
    assert has_line_naming(problem, "prompt 1", "token 32 is 99", "31")
    assert "2 and 32 tokens" in engine.token_problems([[1, 2]], right)[0]


def test_both_checkpoints_are_the_same_everywhere_and_differ(tmp_path):
    start, then = engine.write_models(tmp_path / "one")
    _, again = engine.write_models(tmp_path / "other")
    assert (then / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()
    before, after = (load_file(folder / "model.safetensors") for folder in (start, then))
    assert before.keys() == after.keys() and any((before[name] != after[name]).any() for name in before)


# ---- `ascend-quant smoke`
@pytest.fixture
def only(monkeypatch):
    def these(*found: Probe) -> None:
        monkeypatch.setattr(probes, "probes_for", lambda device, wanted: found)

    return these


def logs(on):
    """As vLLM does: its handler keeps what is stdout at its import."""
    print("printed")
    logging.StreamHandler(sys.stdout).emit(logging.makeLogRecord({"msg": "logged"}))
    return Seen({"a": 1})


@pytest.mark.parametrize("broken", [False, True])
def test_the_command_writes_one_json_with_nothing_between(only, tmp_path, broken):
    only(probe(logs), probe(lambda on: Seen({}, ["it is wrong"] if broken else []), "a.two"))
    done = CliRunner().invoke(commands, ["smoke", "--device", "cpu", "--json", "--out", str(tmp_path / "x.json")])
    assert done.exit_code == broken and "printed" in done.stderr and "logged" in done.stderr
    content = json.loads(done.stdout)
    assert content == json.loads((tmp_path / "x.json").read_text()) and content["ok"] != broken
    assert [one["name"] for one in content["probes"]] == ["a.one", "a.two"]
    assert content["probes"][1]["reason"] == ("it is wrong" if broken else "")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--only", "b"], "'b'"),
        (["--device", "quantum"], "quantum"),
        (["--out", "missing/a.json"], "missing"),
        (["--checkpoints", "one", "two"], "one: has no config.json"),
    ],
)
def test_wrong_use_of_the_command(tmp_path, monkeypatch, arguments, named):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(
        commands, ["smoke", *(arguments if "--device" in arguments else ["--device", "cpu", *arguments])]
    )
    assert done.exit_code == 2 and named in done.stderr


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


def ended_soon(pid: int) -> bool:
    deadline = time.monotonic() + 30
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


# Real commands, but for what takes minutes: no warm-up, and in verl's place a process that sleeps.
STOPPED = """
import sys
from launch import child
from launch.commands import app
from launch.demo import training, warmup
from launch import smoke
sleeps = [sys.executable, "-c", {sleeps!r}]
smoke.train = lambda setting: child.run(sleeps, setting.folder, "slow", 600, "cpu")
warmup.make_start = lambda choices, folder, on_update: 0.5
training.command = lambda *given: sleeps
app({arguments!r})
"""


@pytest.mark.parametrize(
    "arguments", [["smoke", "--only", "train", "--json"], ["demo", "--arms", "int8", "--out", "o"]]
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


def test_a_probe_that_ends_its_process_is_a_result_and_the_others_go_on(setting, monkeypatch):
    """A slow one has a process of its own."""
    asked = []

    def answer(command, folder, name, limit, stack):
        names = [command[at + 1] for at, word in enumerate(command) if word == "--only"]
        asked.append(names)
        done = names[: names.index("a.dies")] if "a.dies" in names else names
        content = results.document([Result(one, "", OK) for one in done], {})
        Path(command[command.index("--out") + 1]).write_text(results.as_text(content))
        log = folder / f"{name}.log"
        log.write_text("RuntimeError: aicore error\n")
        return Ended(-6 if len(done) < len(names) else 0, 1.0, log)

    monkeypatch.setattr(smoke, "run", answer)
    wanted = [probe(name=name, slow=name == "b.slow") for name in ("a.one", "a.dies", "a.two", "b.slow")]
    found = list(smoke.carried_out(setting, wanted))
    assert asked == [["a.one", "a.dies", "a.two"], ["a.two"], ["b.slow"]]
    assert [(one.name, one.status) for one in found] == [
        ("a.one", OK), ("a.dies", FAILED), ("a.two", OK), ("b.slow", OK)
    ]  # fmt: skip
    assert has_line_naming(found[1].reason, "signal 6", "aicore error")


# ---- the doctor, training, all together
def test_errors_of_the_doctor_fail_and_its_warnings_do_not(monkeypatch):
    fine = Finding("ok", "devices.health", "all OK", "")
    warning = Finding("warning", "system.disk", "2 GiB free", "free some")
    error = Finding("error", "system.shm", "64 MiB", "--shm-size=4g")
    for findings, status in (([fine, warning], OK), ([error, fine, warning], FAILED)):
        report = Report([HostReport("this machine", findings, {"Python": "3.11.7"})])
        monkeypatch.setattr(smoke, "examine", lambda report=report: report)
        found = smoke._doctor()
        assert found.status == status and asdict(warning) in found.values["findings"]
    assert found.reason == "system.shm: 64 MiB (--shm-size=4g)" and found.values["error"] == 1


def test_memory_is_asked_for_before_training():
    h200 = Device(0, "NVIDIA H200", "OK", 140000, 143771)
    assert smoke.lack(8, 8, 8 * GIB, Devices()) == ""
    assert has_line_naming(smoke.lack(8, 8, 5 * GIB, Devices()), "8 GiB", "5.0")
    assert has_line_naming(smoke.lack(8, 8, 99 * GIB, Devices("NVML", found=(h200,))), "device 0", "3.7")
    assert "npu-smi is not on PATH" in smoke.lack(8, 8, 99 * GIB, Devices("npu-smi", "npu-smi is not on PATH"))


def logged(step: int, **changes: float) -> str:
    names = ("critic/rewards/mean", "rollout_corr/rollout_is_mean", "rollout_corr/rollout_is_max", "refit/proved")
    names += ("rollout_corr/rollout_is_eff_sample_size", "timing_s/step", "timing_s/update_weights")
    data = dict.fromkeys(names, 0.25) | {"rollout_corr/k3_kl": 1e-4}
    return json.dumps({"step": step, "data": data | changes}) + "\n"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([logged(1), logged(2)], ""),
        ([logged(1)], "1 of 2 steps"),
        ([], "0 of 2 steps"),
        ([logged(1), logged(2, **{"critic/rewards/mean": float("nan")})], "not finite: reward"),
        ([logged(1), logged(2, **{"refit/proved": 0})], "step 2"),
        ([logged(1), logged(2, **{"rollout_corr/k3_kl": 0.5})], "mismatch KL is 0.5"),
        ([logged(1), '{"step": 2, "data": {"timing_s/step": 1}}\n'], "has no critic/rewards/mean"),
    ],
)
def test_what_training_logged(setting, monkeypatch, lines, reason):
    metrics = setting.folder / "metrics.jsonl"
    metrics.write_text("".join(lines))
    ended = Ended(0, 60.0, setting.folder / "train.log")
    monkeypatch.setattr(smoke, "_on_cpu", lambda setting: (ended, metrics))
    monkeypatch.setattr(smoke, "lack", lambda *given: "")
    found = smoke.train(setting)
    assert found.status == (FAILED if reason else OK) and reason in found.reason
    if not reason:
        assert found.values["steps"] == 2 and found.values["weight sync, ms"] == 250


def test_what_training_on_devices_logs_is_found_where_its_job_writes(setting, monkeypatch):
    def ran(command, *given):
        if "train" in command:
            out = command[command.index("--out") + 1]
            made = plan("addition-int8", inventory("cpu"), changes={"nodes": "1"}, out=out)
            file = Path(made.nodes[0].job.environment["VERL_FILE_LOGGER_ROOT"]) / "project" / "run.jsonl"
            file.parent.mkdir(parents=True)
            file.write_text(logged(1))
        return Ended(0, 60.0, setting.folder / "train.log")

    monkeypatch.setattr(smoke, "run", ran)
    monkeypatch.setattr(smoke, "command_of", lambda setting, data, out: ["train", "--out", str(out)])
    assert smoke._on_devices(setting)[1].read_text() == logged(1)


def test_training_comes_before_engines_and_what_failed_leaves_its_logs(monkeypatch):
    order = []

    def told(result: Result) -> Result:
        order.append(result.name)
        return result

    def carried(setting, wanted):
        yield from (told(Result(one.name, "", OK)) for one in wanted)

    monkeypatch.setattr(smoke, "carried_out", carried)
    monkeypatch.setattr(smoke, "_doctor", lambda: told(Result("doctor", "", OK)))
    for status in (OK, FAILED):
        monkeypatch.setattr(smoke, "train", lambda setting, status=status: told(Result("train", "", status)))
        content = smoke.smoke("cpu", "none", 3, [], Console(quiet=True))
        left = list(Path(tempfile.gettempdir()).glob("aq-smoke-*"))
        assert content["ok"] == (status == OK) and len(left) == (status == FAILED)
    assert order[:5] == ["doctor", "versions", "libraries", "operators.schemes", "train"] and order[5] == "engine.refit"
    order.clear()
    smoke.smoke("cpu", "none", 3, ["train", "operators"], Console(quiet=True))
    assert order == ["operators.schemes", "train"]


def called(*arguments: str, **variables):
    return CliRunner(env={"ASCEND_QUANT_STACK": None} | variables).invoke(app, ["smoke", *arguments])


@pytest.mark.parametrize(
    ("arguments", "variables", "named"),
    [
        (["--only", "refits"], {}, ("refits", "operators.schemes", "doctor, train")),
        (["--out", "/nowhere/a.json"], {}, ("/nowhere",)),
        (["--out", "."], {}, ("--out",)),
        ([], {"ASCEND_QUANT_STACK": "cuda12"}, ("ASCEND_QUANT_STACK=cuda12",)),
    ],
)
def test_wrong_use_is_said_before_anything_starts(arguments, variables, named):
    done = called(*arguments, **variables)
    assert done.exit_code == 2 and has_line_naming(done.stderr, *named)


@pytest.mark.parametrize("status", [OK, FAILED])
def test_the_json_goes_to_stdout_alone_or_into_smoke_json(tmp_path, monkeypatch, status):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(smoke, "train", lambda setting: Result("train", "", status, values={"steps": setting.steps}))
    done = called("--json", "--steps", "5", "--only", "train")
    assert done.exit_code == (status == FAILED)
    content = json.loads(done.stdout)
    assert content["probes"][0]["values"] == {"steps": 5} and content["stack"] == "cpu"
    called("--only", "train")
    assert json.loads((tmp_path / "smoke.json").read_text())["ok"] == (status == OK)
    (tmp_path / "smoke.json").unlink()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert json.loads(called("--only", "train").stdout)["probes"] and not (tmp_path / "smoke.json").exists()


def test_a_file_that_cannot_be_written_is_one_line(monkeypatch):
    monkeypatch.setattr(smoke, "train", lambda setting: Result("train", "", OK))
    done = called("--out", "/dev/full", "--only", "train")
    assert done.exit_code == 1 and has_line_naming(done.stderr, "--out /dev/full")
