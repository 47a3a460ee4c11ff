"""`run.sh smoke` and `ascend-quant smoke` without an engine: what is wrong is named, however a process ends."""

import csv
import ctypes
import io
import json
import logging
import os
import re
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
from smoke_cases import logged
from typer.testing import CliRunner

from ascend_quant import oracle
from ascend_quant.commands.app import app as commands
from ascend_quant.kernels import cpu
from ascend_quant.refit import Refit
from ascend_quant.refit.resident import QuantizedWeight, ResidentWeight
from ascend_quant.schemes import SCHEMES
from ascend_quant.smoke import SPOILT, engine, generation, installed, kernels, operators, probes, results, sleep
from ascend_quant.smoke.npu import speed
from ascend_quant.smoke.probes import NotPossible, On, Probe, Seen, carry_out
from ascend_quant.smoke.results import FAILED, NOT_APPLICABLE, OK, Result
from launch import recipes
from launch.commands import app
from launch.doctor.checking import Finding, HostReport, Report
from launch.doctor.drivers import Device, Devices
from launch.doctor.facts import GIB
from launch.smoke import parts, training
from launch.smoke import setting as shared
from launch.smoke.setting import Setting
from launch.system import child as children
from launch.system.child import Ended

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
    assert [one.name for one in probes.probes_for("npu", ["speed"])] == [
        "speed.refit", "speed.refit_calls", "speed.bf16", "speed.int8", "speed.w8a8", "speed.bf16_4", "speed.int8_4",
    ]  # fmt: skip


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
            for write, _, _ in job.each():
                if write.layout is None:
                    write.target.view(torch.int8)[0, 0] ^= 1

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


@pytest.mark.parametrize("config", [engine.CONFIG, engine.CONFIG | engine.EXPERTS, generation.CONFIG])
def test_models_have_heads_that_npus_serve(config: dict):
    """CANN's attention takes heads of 64, 128 or 192 in packed sequences."""
    head = config["hidden_size"] // config["num_attention_heads"]
    assert head == config.get("head_dim", head) and head in (64, 128, 192)


# ---- an engine through sleeps, a profile
STATE = {"digest": "1", "formats": {"29": 4, "2": 3}, "answers": [[0]]}


def judged(turn: dict | None = None, after: dict | None = None, nz: bool = False) -> list[str]:
    """The problems of a sleep and twenty cycles; the last cycle, and what the sleep left, may be otherwise."""
    found = [
        {"digest": "ab"[number % 2], "answers": [[number % 2]], "free asleep": 60 << 30, "free awake": 50 << 30}
        for number in range(sleep.CYCLES)
    ]
    found[-1] |= turn or {}
    seen = Seen({"before": STATE, "after": STATE | (after or {})})
    sleep.judge(seen, found, ["a", "b"], nz)
    return seen.problems


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, None),
        ({"digest": "c"}, ("cycle 20", "digest c", "b")),
        ({"answers": [[7]]}, ("cycle 20", "answers")),
        ({"free asleep": 59 << 30}, ("free asleep", str(1 << 30))),
        ({"free awake": 49 << 30}, ("free awake", str(1 << 30))),
        ({"free awake": (50 << 30) - sleep.GROWTH}, None),
    ],
)
def test_cycles_that_lose_bytes_answers_or_memory(changes, named):
    problems = judged(changes)
    assert len(problems) == (named is not None) and all(has_line_naming(one, *named) for one in problems)


@pytest.mark.parametrize(
    ("after", "named"),
    [
        ({}, ()),
        ({"digest": "2"}, ("'digest': '2'",)),
        ({"answers": [[1]]}, ("[[1]]",)),
        ({"formats": {}}, ("FRACTAL_NZ",)),
    ],
)
def test_a_sleep_that_loses_bytes_answers_or_formats(after, named):
    problems = judged(after=after, nz=True)
    assert bool(problems) == bool(after) and all(any(name in one for one in problems) for name in named)


def test_checkpoints_that_answer_alike_try_nothing():
    turns = [{"digest": "a", "answers": [[0]], "free asleep": 1, "free awake": 1}] * sleep.CYCLES
    seen = Seen({"before": STATE, "after": STATE})
    sleep.judge(seen, turns, ["a", "a"], nz=False)
    assert has_line_naming(seen.problems[0], "checkpoints")


@pytest.mark.parametrize(
    ("way", "core", "waits", "named"),
    [
        (speed.FUSED, "AI_VECTOR_CORE", 2, ()),
        (speed.FUSED, "AI_VECTOR_CORE", 3, ("3 times",)),
        (speed.FUSED, speed.AI_CPU, 1, ("AI CPU", "Cast")),
        ("codes_plain", speed.AI_CPU, 9, ()),
    ],
)
def test_what_the_fused_refit_may_not_do(way, core, waits, named):
    found = [{"name": "Cast", "calls": 1, "us": 60.0, "on": core}]
    seen = speed.judged(way, found, ["called a synchronizing NPU operation"] * waits + ["another warning"])
    assert seen.values["waits"] == waits and len(seen.problems) == bool(named)
    assert all(has_line_naming(one, *named) for one in seen.problems)


def test_the_table_of_torch_npu_s_profiler_is_summed_by_kernel_and_core():
    """Its columns are those of its CsvHeaders; what takes longest is first."""
    table = (
        "Device_id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Num\n"
        "0,one,DynamicQuant,AI_VECTOR_CORE,1.0,10.5,0,8\n"
        "0,two,DynamicQuant,AI_VECTOR_CORE,20.0,9.5,0,8\n"
        "0,three,Cast,AI_CPU,40.0,100.25,0,1\n"
    )
    assert kernels.summed(csv.DictReader(io.StringIO(table))) == [
        {"name": "Cast", "calls": 1, "us": 100.2, "on": "AI_CPU"},
        {"name": "DynamicQuant", "calls": 2, "us": 20.0, "on": "AI_VECTOR_CORE"},
    ]


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
from launch.commands import app
from launch.demo import training, warmup
from launch.smoke import parts
sleeps = [sys.executable, "-c", {sleeps!r}]
parts.train = lambda setting: setting.run(sleeps, "slow", 600)
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

    monkeypatch.setattr(shared, "run", answer)
    wanted = [probe(name=name, slow=name == "b.slow") for name in ("a.one", "a.dies", "a.two", "b.slow")]
    found = list(parts.carried_out(setting, wanted))
    assert asked == [["a.one", "a.dies", "a.two"], ["a.two"], ["b.slow"]]
    assert [(one.name, one.status) for one in found] == [
        ("a.one", OK), ("a.dies", FAILED), ("a.two", OK), ("b.slow", OK)
    ]  # fmt: skip
    assert has_line_naming(found[1].reason, "signal 6", "aicore error") and found[1].broke


def test_a_probe_that_hangs_is_named_and_no_folder_of_this_host_is_in_what_is_sent(setting, monkeypatch):
    """A real process, ended as carry_out ends it."""
    hangs = "import faulthandler, sys, time; faulthandler.dump_traceback_later(0.2, exit=True); time.sleep(60)"
    monkeypatch.setattr(shared, "run", lambda command, *rest: children.run([sys.executable, "-c", hangs], *rest))
    monkeypatch.setattr(parts, "probes_for", lambda device, wanted=(): [probe()])
    (found,) = started(setting, "a.one")["probes"]
    assert found["status"] == FAILED and has_line_naming(found["reason"], "60 s", "a.one ended with 1", "a.one.log")
    assert str(setting.folder) not in found["reason"]


def test_a_process_that_hangs_before_its_first_probe_costs_the_time_of_all_once(setting, monkeypatch):
    """As where a driver does not answer; the parts after it are tried."""
    asked = []

    def answer(command, folder, name, limit, stack):
        asked.append(name)
        return children.run(["sleep", "60"], folder, name, 0.3, stack)

    monkeypatch.setattr(shared, "run", answer)
    wanted = [probe(), probe(name="a.two"), probe(name="b.slow", slow=True), probe(name="c.slow", slow=True)]
    found = list(parts.carried_out(setting, wanted))
    assert asked == ["a.one", "b.slow", "c.slow"]
    assert [one.name for one in found] == ["a.one", "a.two", "b.slow", "c.slow"]
    assert all(one.status == FAILED and one.broke and "was ended after" in one.reason for one in found)


# ---- the doctor, training, all together
def test_errors_of_the_doctor_fail_and_its_warnings_do_not(setting, monkeypatch):
    fine = Finding("ok", "devices.free", "no problem found")
    warning = Finding("warning", "system.disk", "2 GiB free", "free some")
    error = Finding("error", "system.shm", "64 MiB", "--shm-size=4g")
    for findings, status in (([fine, warning], OK), ([error, fine, warning], FAILED)):
        report = Report([HostReport("this machine", findings, {"Python": "3.11.7"})])
        (setting.folder / "report.json").write_text(report.as_json())
        monkeypatch.setattr(parts, "LAUNCH", ("sh", "-c", "cat report.json"))
        found = parts._doctor(setting)
        assert found.status == status and asdict(warning) in found.values["findings"]
    assert found.reason == "system.shm: 64 MiB (--shm-size=4g)" and found.values["error"] == 1


@pytest.mark.parametrize(("command", "named"), [(("false",), "ended with 1"), (("sleep", "60"), "ended after")])
def test_a_doctor_that_ends_or_hangs(setting, monkeypatch, command, named):
    monkeypatch.setattr(parts, "LAUNCH", ("sh", "-c", " ".join(command)))
    monkeypatch.setattr(parts, "DOCTOR_S", 1)
    found = parts._doctor(setting)
    assert found.status == FAILED and found.broke and named in found.reason


def test_memory_is_asked_for_before_training():
    h200 = Device(0, "NVIDIA H200", "OK", 140000, 143771)
    assert training.lack(8, 8, 8 * GIB, Devices()) == ""
    assert has_line_naming(training.lack(8, 8, 5 * GIB, Devices()), "8 GiB", "5.0")
    assert has_line_naming(training.lack(8, 8, 99 * GIB, Devices("NVML", found=(h200,))), "device 0", "3.7")
    assert "npu-smi is not on PATH" in training.lack(8, 8, 99 * GIB, Devices("npu-smi", "npu-smi is not on PATH"))


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
def test_what_training_logged(setting, monkeypatch, lines, reason):
    metrics = setting.folder / "metrics.jsonl"
    metrics.write_text("".join(lines))
    ended = Ended(0, 60.0, setting.folder / "train.log")
    ended.log.write_text("RuntimeError: the reason\n")
    monkeypatch.setattr(training, "trained", lambda setting: (ended, metrics))
    monkeypatch.setattr(training, "lack", lambda *given: "")
    found, _ = training.train(setting)
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
def test_the_nan_after_the_steps(setting, monkeypatch, lines, code, said, status, broke):
    metrics = setting.folder / "metrics.jsonl"
    metrics.write_text("".join(logged(step) for step in range(1, lines + 1)))
    ended = Ended(code, 60.0, setting.folder / "train.log")
    ended.log.write_text(said)
    monkeypatch.setattr(training, "trained", lambda setting: (ended, metrics))
    monkeypatch.setattr(training, "lack", lambda *given: "")
    steps, refused = training.train(Setting("ascend-cann9.1", "npu", setting.folder, 2))
    assert steps.status == (OK if lines >= 2 else FAILED)
    assert (refused.name, refused.status, refused.broke) == ("train.nan", status, broke)


def test_what_training_logs_is_found_where_its_job_writes(setting, monkeypatch):
    def ran(command, *given):
        if "train" in command:
            out = command[command.index("--out") + 1]
            made = plan("addition-int8", inventory("cpu"), extra=["trainer.nnodes=1"], out=out)
            file = Path(made.nodes[0].job.environment["VERL_FILE_LOGGER_ROOT"]) / "project" / "run.jsonl"
            file.parent.mkdir(parents=True)
            file.write_text(logged(1))
        return Ended(0, 60.0, setting.folder / "train.log")

    monkeypatch.setattr(shared, "run", ran)
    monkeypatch.setattr(training, "command_of", lambda setting, data, out: ["train", "--out", str(out)])
    assert training.trained(setting)[1].read_text() == logged(1)


def overrides(command: list[str]) -> set[str]:
    """verl's, of a command that trains a recipe."""
    recipe = recipes.load(command[command.index("train") + 1], command[command.index("--") + 1 :])
    return set(recipes.resolve(recipe, recipes.Paths(model="/m", data="/d", out="/o")))


@pytest.mark.parametrize(
    ("stack", "devices", "libraries"),
    [
        ("ascend-cann9.1", "npu", [training.PLANTED]),
        ("ascend-cann8.5", "npu", [training.PLANTED]),
        ("cuda13", "gpu", [training.LIBRARY, training.PLANTED]),  # the attention of its stack stays
    ],
)
def test_devices_train_with_graphs_and_sleep_and_one_step_more_for_the_nan(setting, stack, devices, libraries):
    found = overrides(training.command_of(Setting(stack, devices, setting.folder, 3), "/d", Path("/o")))
    assert f"actor_rollout_ref.model.external_lib=[{','.join(libraries)}]" in found
    rollout = "actor_rollout_ref.rollout"
    assert {f"{rollout}.enforce_eager=false", f"{rollout}.free_cache_engine=true"} <= found
    assert {f"+{rollout}.enable_sleep_mode=true", "trainer.total_training_steps=4"} <= found


@pytest.fixture
def order(monkeypatch):
    """The parts that are begun, all of which are well."""
    found = []

    def told(*names: str) -> list[Result]:
        found.extend(names)
        return [Result(name, "", OK) for name in names]

    def carried(setting, wanted):
        for one in wanted:
            yield from told(one.name)

    monkeypatch.setattr(parts, "carried_out", carried)
    monkeypatch.setattr(parts, "_doctor", lambda setting: told("doctor")[0])
    monkeypatch.setattr(parts, "train", lambda setting: told(*TRAINED))
    return found


def started(setting: Setting, *wanted: str, **more) -> dict:
    return parts.smoke(setting, wanted, Console(quiet=True), **more)


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

    def dies(setting):
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
    assert parts.differences(before, Setting("cpu", "none", setting.folder, 3)) == ["steps 2"]
    assert parts.differences(before | {"schema": 1}, setting) == ["schema 1"]
    other = parts.differences(before, Setting("cuda13", "gpu", setting.folder, 2))
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
    short = Setting("cpu", "none", setting.folder, 2, time.monotonic() + 0.2)
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


def test_probes_that_take_more_devices_than_there_are(setting, monkeypatch):
    there = Devices("npu-smi", found=(Device(3, "910B3", "OK", 0, 65536),))
    monkeypatch.setattr(parts, "devices_of", lambda devices: there)
    found = list(parts.carried_out(setting, probes.probes_for("npu", ["engine.ranks", "engine.experts"])))
    assert [(one.name, one.status) for one in found] == [
        ("engine.ranks", NOT_APPLICABLE), ("engine.experts", NOT_APPLICABLE)
    ]  # fmt: skip
    assert has_line_naming(found[1].reason, "4 devices", "1")


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
    values = {"steps": 5}

    def trained(setting):
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
    monkeypatch.setattr(parts, "train", lambda setting: [])  # as where time ran out
    done = called()
    assert done.exit_code == 3 and json.loads(Path("smoke.json").read_text())["left"] == TRAINED
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(parts, "train", lambda setting: [Result(name, "", OK) for name in TRAINED])
    assert called().exit_code == 0
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
    monkeypatch.setattr(parts, "train", lambda setting: [Result("train", "", OK)])
    done = called("--out", "/dev/full", "--only", "train")
    assert done.exit_code == 1 and has_line_naming(done.stderr, "--out /dev/full")
