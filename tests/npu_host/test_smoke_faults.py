"""Faults that are planted under tests/npu_smoke: each is found, by a verdict that names what is wrong."""

import json
import multiprocessing
import os
import signal
import stat
import sys
from pathlib import Path

import psutil
import pytest
import torch
import torch_npu
from naming import has_line_naming, line_naming
from npu_smoke import checks, collective, engine, graphs, profiles, report, runner, tools, training

from ascend_quant.kernels import npu_formats, reciprocals
from npu_host import smoke_runs
from npu_host.smoke_runs import answered, by_name, run

with_graphs = pytest.fixture(smoke_runs.with_graphs)


def found(folder: Path, *only: str) -> dict[str, dict]:
    """The results by name of a dry run of some checks; its exit code is what the needed ones say."""
    code, content = run(folder / "result.json", *only)
    assert code == bool(content["summary"]["needed and failed"])
    return by_name(content)


def refuted(results: dict[str, dict]) -> set[str]:
    return {name for name, one in results.items() if one["verdict"] == "refuted"}


def program(file: Path, text: str) -> Path:
    """A program in Python that a check takes for another."""
    file.write_text(f"#!{sys.executable}\n{text}")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


# ---- rounding and scales
def test_wrong_codes_are_seen_where_they_are_computed(monkeypatch, tmp_path):
    right = reciprocals.codes_of
    monkeypatch.setattr(reciprocals, "codes_of", lambda *args: right(*args) + 1)
    results = found(tmp_path, "arithmetic")
    assert refuted(results) == {"arithmetic.scales_and_factors"}
    assert "codes: 261120 of 261120 differ" in results["arithmetic.scales_and_factors"]["reason"]


@pytest.mark.parametrize("kind", [npu_formats.Transposed, npu_formats.Panels])
def test_wrong_codes_are_seen_where_they_lie(monkeypatch, tmp_path, kind):
    right = kind.write
    monkeypatch.setattr(kind, "write", lambda self, first, codes_NK: right(self, first, codes_NK ^ 1))
    results = found(tmp_path, "layout.panels", "quantize", "refit", "products.nz")
    panels = {"layout.panels", *(f"quantize.{name}" for name in ("nz", "experts", "unaligned"))}
    assert refuted(results) == {"refit.addresses"} | ({"quantize.nd"} if kind is npu_formats.Transposed else panels)
    one = results["quantize.nd" if kind is npu_formats.Transposed else "quantize.nz"]
    assert "8192 of 8192 differ, by 1 at most" in one["reason"] and "definition" in one["claim"]["sentence"]


def test_a_rounding_away_from_zero_is_seen(monkeypatch, tmp_path):
    def away(x, scales, *args, **kwargs):
        products = x * scales[:, None]
        return (products + 0.5 * products.sign()).trunc().to(torch.int8)

    monkeypatch.setattr(torch_npu, "npu_quantize", away)
    results = found(tmp_path, "fused.per_head", "fused.axis")
    assert "fused.per_head" in refuted(results) and "differ, by 1 at most" in results["fused.per_head"]["reason"]


def test_a_scale_that_is_an_ulp_off_is_seen(monkeypatch, tmp_path):
    right = reciprocals.scale_and_factor

    def one_ulp_more(absmax_N):
        scale, factor = right(absmax_N)
        return (scale.view(torch.int32) + (scale > 0)).view(torch.float32), factor

    monkeypatch.setattr(reciprocals, "scale_and_factor", one_ulp_more)
    results = found(tmp_path, "arithmetic.scales_and_factors", "quantize.copies")
    assert refuted(results) == {"arithmetic.scales_and_factors"}
    assert has_line_naming(results["arithmetic.scales_and_factors"]["reason"], "1 units … last place")


def test_a_scale_of_the_refit_before_is_seen(monkeypatch, tmp_path):
    right = graphs.Resident.write

    def stale(self, seed):
        before = self.scale.clone()
        values = right(self, seed)
        self.scale.copy_(before)
        return values

    monkeypatch.setattr(graphs.Resident, "write", stale)
    results = found(tmp_path, "refit")
    assert refuted(results) == {"refit.addresses"} and "scales of" in results["refit.addresses"]["reason"]


# ---- operators
@pytest.mark.parametrize(
    ("operator", "wrong", "expected"),
    [
        ("npu_quant_matmul", lambda y: y + 1, {"int32", "nd", "nz", "fp16", "unaligned"}),
        ("npu_grouped_matmul", lambda y: [y[0] * 1.02], {"nd", "nz", "fp16", "unaligned"}),
        ("npu_dequant_swiglu_quant", lambda y: (y[0] + 2, y[1]), {"dequant_swiglu_quant"}),
        ("npu_grouped_matmul_swiglu_quant", lambda y: (y[0], y[1] * 1.01, y[2]), {"swiglu_quant"}),
    ],
)
def test_an_operator_that_is_wrong_is_seen_by_its_checks(monkeypatch, tmp_path, operator, wrong, expected):
    right = getattr(torch_npu, operator)

    def changed(*args, **kwargs):
        y = right(*args, **kwargs)
        return y if isinstance(y, list) and y[0].dtype == torch.int32 else wrong(y)

    monkeypatch.setattr(torch_npu, operator, changed)
    group = "products" if operator == "npu_quant_matmul" else "experts"
    assert refuted(found(tmp_path, group)) == {f"{group}.{name}" for name in expected}


def test_an_axis_that_is_dropped_is_seen(monkeypatch, tmp_path):
    right = torch_npu.npu_quantize

    def by_columns(x, scales, *args, axis, **kwargs):
        return right(
            x,
            scales[:1].expand(x.shape[1]).contiguous() if len(scales) != x.shape[1] else scales,
            *args,
            axis=-1,
            **kwargs,
        )

    monkeypatch.setattr(torch_npu, "npu_quantize", by_columns)
    results = found(tmp_path, "fused.axis", "fused.per_head")
    assert refuted(results) == {"fused.axis", "fused.per_head"}
    assert "axis" in results["fused.axis"]["reason"]


def test_a_nan_that_the_norm_does_not_see_is_seen(monkeypatch, tmp_path):
    right = torch.linalg.vector_norm
    monkeypatch.setattr(torch.linalg, "vector_norm", lambda x, *args, **more: right(x.nan_to_num(0.0), *args, **more))
    results = found(tmp_path, "fused.norm_inf", "fused.amax_amin")
    assert refuted(results) == {"fused.norm_inf"} and "nan at 0 of 1" in results["fused.norm_inf"]["reason"]


def test_an_operator_that_is_missing_or_raises_is_a_verdict(monkeypatch, tmp_path):
    def raises(*args, **kwargs):
        raise RuntimeError("/usr/local/Ascend/opp/libopapi.so: aicore error 507015")

    monkeypatch.setattr(torch_npu, "npu_dynamic_quant", raises)
    monkeypatch.delattr(torch_npu, "npu_quantize")
    results = found(tmp_path, "quantize.dynamic_quant", "fused.per_head", "speed.panels")
    assert results["quantize.dynamic_quant"]["verdict"] == "refuted"
    assert results["quantize.dynamic_quant"]["reason"] == "RuntimeError: libopapi.so: aicore error 507015"
    assert results["fused.per_head"]["verdict"] == "missing"
    assert "has no npu_quantize" in results["fused.per_head"]["reason"]
    assert results["speed.panels"]["answer"] == "yes"


# ---- layout, addresses, graphs, memory
def test_another_layout_than_ours_is_seen(monkeypatch, tmp_path):
    from npu_host import formats

    right = formats._blocks
    monkeypatch.setattr(formats, "ROWS", 32)
    monkeypatch.setattr(formats, "_blocks", lambda t: (right(t)[0], -(-t.shape[-2] // 32), *right(t)[2:]))
    results = found(tmp_path, "layout.formula", "fused.panels_of_experts", "arithmetic.copies")
    assert refuted(results) == {"layout.formula", "fused.panels_of_experts"}


def test_a_graph_that_reads_the_old_weights_is_seen(with_graphs, monkeypatch, tmp_path):
    monkeypatch.setattr(smoke_runs.Recorded, "replay", lambda self: None)
    results = found(tmp_path, "graphs")
    assert len(refuted(results)) == 3 == len(results)


def test_a_refit_that_moves_a_weight_is_seen(monkeypatch, tmp_path):
    right = graphs.Resident.write

    def moving(self, seed):
        self.scale_bf16 = self.scale_bf16.clone()
        return right(self, seed)

    monkeypatch.setattr(graphs.Resident, "write", moving)
    assert refuted(found(tmp_path, "refit")) == {"refit.addresses"}


def test_memory_that_a_refit_keeps_is_seen(monkeypatch, tmp_path):
    right, kept = graphs.Residents.__call__, []

    def leaking(self):
        right(self)
        kept.append(torch.empty(1 << 20, device="npu"))

    monkeypatch.setattr(graphs.Residents, "__call__", leaking)
    assert refuted(found(tmp_path, "memory")) == {"memory.reserved", "memory.growth"}


# ---- devices
def test_a_device_that_is_missing_is_a_verdict_of_every_check(monkeypatch, tmp_path):
    def in_this_process(work, names, device, small, budget):
        told, teller = multiprocessing.Pipe(duplex=False)
        work(teller, names, device, small)
        teller.close()
        while told.poll(0):
            yield told.recv()
            break

    monkeypatch.setattr(signal, "signal", lambda *args: None)
    monkeypatch.setattr(runner, "_told_by_child", in_this_process)
    runner.load()
    names = ["environment.versions", "quantize.nz", "collective.all_reduce"]
    events = list(runner.run_apart(names, "npu:7", True, runner.Budget.of(30)))
    results = [value for kind, value in events if kind == runner.END]
    assert [one["verdict"] for one in results] == ["missing"] * 3
    assert all("not tried: the device" in one["reason"] for one in results)
    assert [one["name"] for one in results if report.is_bad(one)] == ["quantize.nz"]


def test_hccl_that_is_down_is_seen(monkeypatch, tmp_path):
    monkeypatch.setattr(collective, "RANKS", 1)  # its process finds HCCL's library without a function
    one = found(tmp_path, "collective")["collective.all_reduce"]
    assert (one["verdict"], one["answer"]) == ("fact", "no") and "--backend hccl" in one["reason"]


def test_two_ranks_add_up(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.npu, "device_count", lambda: 2)
    monkeypatch.setattr(collective, "BACKEND", "gloo")
    one = found(tmp_path, "collective")["collective.all_reduce"]
    assert one["answer"] == "yes" and one["numbers"]["sum"] == [3.0]


def test_checks_that_come_too_late_are_missing():
    runner.load()
    names = ["arithmetic.round", "quantize.nz"]
    events = list(runner.run_apart(names, "npu:0", True, runner.Budget.of(0)))
    results = [value for kind, value in events if kind == runner.END]
    assert [one["verdict"] for one in results] == ["missing"] * 2 and "--minutes" in results[0]["reason"]
    assert not any(map(report.is_bad, results))


# ---- what msprof sees
MSPROF = """
import csv, os, sys
from pathlib import Path
refits = int(sys.argv[sys.argv.index("--refits") + 1])
out = Path(next(word for word in sys.argv if word.startswith("--output=")).partition("=")[2])
folder = out / "PROF_1" / "mindstudio_profiler_output"
folder.mkdir(parents=True)
Path(os.environ["NPU_SMOKE_SECTIONS"]).write_text("64,refits,copy")
with (folder / "api_statistic_1.csv").open("w") as file:
    rows = csv.writer(file)
    rows.writerow(["Device_id", "Level", "API Name", "Time(us)", "Count"])
    rows.writerow(["host", "acl", "aclrtSynchronizeStreamWithTimeout", 1, 40 + WAITS * refits])
    rows.writerow(["host", "acl", "aclrtMemcpyAsync", 1, 9 * refits])
    rows.writerow(["host", "runtime", "StreamSynchronize", 1, 999 * refits])
kernels = [("Cast", "AI_VECTOR_CORE"), ("Sinh", "AI_VECTOR_CORE")]
kernels += [("LpNormV2", "AI_VECTOR_CORE"), ("SORT", CORE)] * refits + [("Sinh", "AI_VECTOR_CORE")]
kernels += [("TensorMove", "AI_VECTOR_CORE"), ("Sinh", "AI_VECTOR_CORE")]
with (folder / "op_summary_1.csv").open("w") as file:
    rows = csv.writer(file)
    rows.writerow(["Op Name", "OP Type", "Task Type", "Task Start Time(us)", "Task Duration(us)"])
    for start, (kind, core) in reversed(list(enumerate(kernels))):
        rows.writerow([kind, kind, core, 1700000000000.5 + start, 2.5])
"""


@pytest.mark.parametrize(
    ("waiting", "core", "expected"),
    [
        (2, "AI_VECTOR_CORE", set()),
        (3, "AI_VECTOR_CORE", {"profiles.waits"}),
        (2, "AI_CPU", {"profiles.ai_cpu"}),
    ],
)
def test_waits_and_operators_on_the_ai_cpu_are_seen(monkeypatch, tmp_path, waiting, core, expected):
    profiles._both.cache_clear()
    text = MSPROF.replace("WAITS", str(waiting)).replace("CORE)", f'"{core}")')
    program(tmp_path / "msprof", text)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    results = found(tmp_path, "profiles")
    assert refuted(results) == expected
    assert results["profiles.waits"]["numbers"]["waits"] == {"aclrtSynchronizeStreamWithTimeout": waiting}
    assert results["profiles.ai_cpu"]["numbers"]["on the AI CPU"] == (
        {"SORT": profiles.MORE} if core == "AI_CPU" else {}
    )
    assert results["profiles.kernels"]["numbers"]["copy"] == {"TensorMove (AI_VECTOR_CORE)": {"number": 1, "us": 2.5}}


def test_a_profiler_that_fails_is_a_verdict(monkeypatch, tmp_path):
    profiles._both.cache_clear()
    program(tmp_path / "msprof", "raise SystemExit('no permission')")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    results = found(tmp_path, "profiles")
    assert refuted(results) == {"profiles.waits", "profiles.ai_cpu"}
    assert "no permission" in results["profiles.waits"]["reason"]


# ---- engines and training, whose processes are stand-ins
LIVED = {
    "sleep": {"before": {"digest": "1"}, "after": {"digest": "1"}, "formats": {"29": 4, "2": 3}, "same tokens": True},
    "bad tensor": {"tensor": "a.b", "refused": "a.b: NaN", "served meanwhile": False, "served then": True},
    "level 2": {"refused": "sleep level 2 would lose the weights"},
}
FAULTY = {
    "engine.sleep": ("sleep", {"after": {"digest": "2"}}),
    "engine.bad_tensor": ("bad tensor", {"served meanwhile": True}),
    "engine.sleep_level_2": ("level 2", {"refused": "", "woken": ""}),
}


@pytest.mark.parametrize("name", [None, *FAULTY])
def test_an_engine_that_forgets_or_serves_junk_is_seen(monkeypatch, tmp_path, name):
    part, fault = FAULTY.get(name, ("sleep", {}))
    told = {**LIVED, part: LIVED[part] | fault}
    engine._lived.cache_clear()
    monkeypatch.setattr(tools, "need_packages", lambda *names: None)
    monkeypatch.setattr(engine, "_make_models", lambda folder: None)
    monkeypatch.setattr(tools, "answer", lambda *args: told)
    assert refuted(found(tmp_path, *FAULTY)) == ({name} if name else set())


@pytest.mark.parametrize("problem", ["", "rank 1: digest the receipt's: 0a, the fresh engine's 0b"])
def test_a_rank_with_other_bytes_than_a_fresh_engines_is_seen(monkeypatch, tmp_path, problem):
    commands = []

    def run(command, *args):
        commands.append(command)
        return (1, f"refit: 27 tensors\nerror: {problem}\n") if problem else (0, "refit: 27 tensors\n")

    monkeypatch.setattr(tools, "need_packages", lambda *names: None)
    monkeypatch.setattr(torch.npu, "device_count", lambda: 4)
    monkeypatch.setattr(engine, "_make_models", lambda folder, moe: None)
    monkeypatch.setattr(tools, "run", run)
    names = {"engine.two_ranks", "engine.experts_apart"}
    results = found(tmp_path, *names)
    assert refuted(results) == (names if problem else set())
    assert all(problem in one["reason"] for one in results.values())
    assert [command[command.index("--tensor-parallel-size") + 1] for command in commands] == ["2", "4"]
    assert ["--expert-parallel" in command for command in commands] == [False, True]


def test_ranks_that_have_no_npu_are_a_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(tools, "need_packages", lambda *names: None)
    monkeypatch.setattr(torch.npu, "device_count", lambda: 3)
    one = found(tmp_path, "engine.experts_apart")["engine.experts_apart"]
    assert one["verdict"] == "missing" and has_line_naming(one["reason"], "4 NPUs", "3")


# ---- the doctor
GOOD, BUG = {"level": "ok", "fix": ""}, "report this as a bug, with the output of --json"


@pytest.mark.parametrize(
    ("finding", "answer"),
    [
        (GOOD, "yes"),
        ({"level": "error", "fix": "install CANN 9.1.0"}, "yes"),
        ({"level": "error", "fix": ""}, "no"),
        ({"level": "warning", "fix": BUG}, "no"),
    ],
)
def test_a_finding_that_the_doctor_does_not_explain_is_seen(monkeypatch, tmp_path, finding, answer):
    of_host = [
        GOOD | {"check": "a", "what": "b"},
        finding | {"check": "c", "what": "/etc/d at 192.0.2.7 or fd00:0:0:1::7"},
    ]
    told = json.dumps({"hosts": [{"findings": of_host}], "together": []}, indent=1)
    text = f"print('a library talks'); print({told!r}); print('and talks')"
    monkeypatch.setattr(tools, "RUN", str(program(tmp_path / "run.sh", text)))
    monkeypatch.setenv("ASCEND_QUANT_STACK", "ascend-cann9.1")
    one = found(tmp_path, "doctor")["doctor.findings"]
    assert one["answer"] == answer and one["reason"].startswith("c: ") == (answer == "no")
    assert {seen["what"] for seen in one["numbers"]["findings"]} <= {"d at (address) or (address)"}
    assert len(one["numbers"]["findings"]) == (finding is not GOOD) and "192" not in one["reason"]


def test_a_doctor_that_says_nothing_is_a_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(tools, "RUN", str(program(tmp_path / "run.sh", "raise SystemExit('no such file')")))
    monkeypatch.setenv("ASCEND_QUANT_STACK", "ascend-cann9.1")
    one = found(tmp_path, "doctor")["doctor.findings"]
    assert one["answer"] == "no" and "no such file" in one["reason"]


# ---- training


def test_a_process_that_never_ends_or_says_nothing_is_a_reason(tmp_path):
    sleeping = tools.python("-c", "import time; print('loading', flush=True); time.sleep(60)")
    with pytest.raises(checks.Wrong, match=line_naming("1 s; … : loading")):
        tools.answer(sleeping, 1, tmp_path)
    with pytest.raises(checks.Wrong, match="ended with 3: out of memory"):
        tools.answer(tools.python("-c", "import sys; print('out of memory'); sys.exit(3)"), 60, tmp_path)


@pytest.mark.parametrize(("code", "expected"), [(0, {"digest": 7}), (9, {"digest": 7, "exit code": 9})])
def test_an_answer_stands_although_libraries_talk_on_as_they_end(tmp_path, code, expected):
    text = f"import sys; print('[1]'); print('{{\"digest\": 7}}'); print('Warning: 3 leaked'); sys.exit({code})"
    assert tools.answer(tools.python("-c", text), 60, tmp_path) == expected


STEP = {"rollout_corr/k3_kl": 1e-4, "refit/proved": 26, "timing_s/step": 5.0}


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([STEP] * 3, ""),
        ([STEP] * 2, "2 of 3 steps"),
        ([STEP, STEP, STEP | {"rollout_corr/k3_kl": 0.2}], "step 3: rollout_corr/k3_kl is 0.2"),
        ([STEP, {**STEP, "refit/proved": 0}, STEP], "step 2: refit/proved is 0"),
    ],
)
@pytest.mark.parametrize("name", ["training.three_steps", "training.without_ipc"])
def test_a_training_that_loses_its_policy_is_seen(monkeypatch, tmp_path, steps, reason, name):
    logged = "".join(f'{{"step": {n}, "data": {s}}}\\n'.replace("'", '"') for n, s in enumerate(steps))
    text = f"""
import sys
from pathlib import Path
if sys.argv[1] == "train":
    assert ("environment.VERL_USE_EXTERNAL_MODULES=npu_smoke.in_verl" in sys.argv) == WITHOUT_IPC
    print("(WorkerDict pid=7) npu-smoke: no IPC in process 7" if WITHOUT_IPC else "")
    out = Path(sys.argv[sys.argv.index("--out") + 1], "metrics", "x")
    out.mkdir(parents=True)
    (out / "log.jsonl").write_text('{logged}')
"""
    text = text.replace("WITHOUT_IPC", str("without" in name))
    monkeypatch.setattr(training, "RUN", str(program(tmp_path / "run.sh", text)))
    monkeypatch.setattr(tools, "need_packages", lambda *names: None)
    monkeypatch.setenv("ASCEND_QUANT_STACK", "ascend-cann9.1")
    one = found(tmp_path, name)[name]
    assert one["verdict"] == ("refuted" if reason else "proved") and reason in one["reason"]
    assert answered({"checks": [one]}, "no" if reason else "yes")
    assert reason or one["numbers"].get("processes without IPC") == (1 if "without" in name else None)


def test_ipc_that_was_never_off_is_seen():
    training._must_be_without({}, None, "")
    with pytest.raises(checks.Wrong):
        training._must_be_without({}, training.NO_IPC, "npu-smoke: no IPC in process 7")  # of the driver alone


RUN_WITH_A_NAN = """
import subprocess, sys, time
from pathlib import Path
import numpy
from safetensors.numpy import load_file, save_file
word = dict(zip(sys.argv, sys.argv[1:]))
if sys.argv[1] == "data":
    folder = Path(word["--to"], "addition", "start")
    folder.mkdir(parents=True)
    save_file({"NAME": numpy.ones((8, 8), "float32")}, folder / "model.safetensors")
    sys.exit()
weights = load_file(Path(word["--data"], "addition", "start", "model.safetensors"))
assert numpy.isnan(weights["NAME"]).sum() == 1
FAULT
"""
NAMED = "print('RefitError: NAME: 1 of 64 elements are NaN or Inf', flush=True)"
FAULTS = {
    "": f"{NAMED}; time.sleep(1.5); sys.exit(1)",
    "ended well": f"{NAMED}; sys.exit(0)",
    "not named": "print('out of memory'); sys.exit(1)",
    "after": f"{NAMED}; time.sleep(4); sys.exit(1)",
    "left: sleep": f"{NAMED}; subprocess.Popen(['sleep', '60'], start_new_session=True); time.sleep(2); sys.exit(1)",
}


@pytest.mark.parametrize("reason", FAULTS)
def test_a_nan_that_does_not_end_a_run_cleanly_is_seen(monkeypatch, tmp_path, reason):
    text = RUN_WITH_A_NAN.replace("FAULT", FAULTS[reason]).replace("NAME", training.NAN)
    monkeypatch.setattr(training, "RUN", str(program(tmp_path / "run.sh", text)))
    monkeypatch.setattr(training, "MOST_S", 1 if reason == "after" else 60)
    monkeypatch.setattr(tools, "need_packages", lambda *names: None)
    monkeypatch.setenv("ASCEND_QUANT_STACK", "ascend-cann9.1")
    one = found(tmp_path, "training.nan")["training.nan"]
    for process in psutil.process_iter(["name", "environ"]):
        if training.MARK in (process.info["environ"] or {}):
            assert process.info["name"] == "sleep"
            process.kill()
    assert one["verdict"] == ("refuted" if reason else "proved") and reason in one["reason"]


def test_the_7b_recipe_needs_eight_npus_and_what_nothing_here_may_fetch(monkeypatch, tmp_path):
    monkeypatch.setattr(tools, "need_packages", lambda *names: None)
    names = ["training.seven_b", "training.seven_b_without_ipc"]
    assert all(has_line_naming(one["reason"], "8 NPUs") for one in found(tmp_path, *names).values())
    monkeypatch.setattr(torch.npu, "device_count", lambda: 8)
    monkeypatch.delenv(training.MODEL, raising=False)
    monkeypatch.setenv(training.DATA, str(tmp_path))
    results = found(tmp_path, *names)
    assert {one["verdict"] for one in results.values()} == {"missing"}
    assert all(training.MODEL in one["reason"] and training.DATA not in one["reason"] for one in results.values())


# ---- processes
def test_a_check_has_its_own_limit_and_no_more_than_is_left():
    runner.load()
    name, own = "collective.all_reduce", checks.CHECKS["collective.all_reduce"].limit_s
    assert runner.Budget.of(60).wait(name)[0] == own != checks.LIMIT_S
    assert runner.Budget.of(60, most=7).wait(name) == (7, "no end after 7 s")
    seconds, reason = runner.Budget.of(1).wait(name)
    assert 0 < seconds <= 60 < own and "--minutes" in reason


def test_a_check_that_wants_other_variables_is_in_a_process_of_its_own(monkeypatch):
    runner.load()
    monkeypatch.delenv("INF_NAN_MODE_ENABLE", raising=False)
    names = ["fused.xor", "fused.digest", "fused.norm_inf_saturated", "fused.amax_amin_saturated", "fused.axis"]
    assert runner._alike(names) == names[:2] and runner._alike(names[2:]) == names[2:4]
    with runner._variables(checks.CHECKS[names[2]].variables):
        assert os.environ["INF_NAN_MODE_ENABLE"] == "0"
    assert "INF_NAN_MODE_ENABLE" not in os.environ
