"""tests/npu_smoke on host memory: every check has its verdict, and what the harness cannot do is named.

The exit codes are what a person with an NPU looks at first; the JSON file is what they send back.
"""

import importlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch_npu
from naming import has_line_naming
from npu_smoke import checks, claims, clock, environment, graphs, report, runner
from npu_smoke.__main__ import main

from npu_host import smoke_runs
from npu_host.smoke_runs import answered, by_name, run

ROOT = Path(__file__).parents[2]
NOT_HERE = {  # and a part of the reason
    **dict.fromkeys(("graphs.linear_nd", "graphs.linear_nz", "graphs.experts"), "Failed to find function aclmdlRI"),
    **dict.fromkeys(("profiles.waits", "profiles.ai_cpu", "profiles.kernels"), "msprof is not on PATH"),
    **{"kv_cache.graphs": "Failed to find function aclmdlRI", "kv_cache.engine": "has no acl"},
    **dict.fromkeys(("engine.tokens", "engine.graphs", "engine.sleep", "engine.bad_tensor"), "has no acl"),
    **dict.fromkeys(("engine.sleep_level_2", "engine.two_ranks", "engine.experts_apart"), "has no acl"),
    "generation.speed": "has no acl",
    "doctor.findings": "belongs to none of the stacks",
    **dict.fromkeys(("training.three_steps", "training.without_ipc", "training.nan"), "has no verl"),
    **dict.fromkeys(("training.seven_b", "training.seven_b_without_ipc"), "has no verl"),
    "collective.all_reduce": "2 NPUs are needed, this process sees 1",
    "clock.events": "no time apart",
    "speed.refit_dense": "dry run",
}
FIELDS = {"name": str, "verdict": str, "answer": str, "reason": str, "needed": bool, "question": str}
FIELDS |= {"seconds": float, "numbers": dict}
with_graphs = pytest.fixture(smoke_runs.with_graphs)


@pytest.fixture(scope="module")
def dry(tmp_path_factory) -> dict:
    """A dry run of all checks."""
    graphs._why_no_graphs.cache_clear()
    code, content = run(tmp_path_factory.mktemp("smoke") / "result.json")
    assert code == 0, answered(content, "no")
    return content


def test_every_check_has_a_verdict_and_what_is_missing_here_says_why(dry):
    assert [one["name"] for one in dry["checks"]] == list(checks.CHECKS)
    assert answered(dry, "unknown") == set(NOT_HERE) and not answered(dry, "no")
    for name, one in by_name(dry).items():
        assert NOT_HERE.get(name, "") in one["reason"] and bool(one["reason"]) == (name in NOT_HERE), name


def test_the_file_has_what_its_schema_says(dry):
    assert dry["schema"] == report.SCHEMA
    assert dry["options"] == {"small": True, "only": [], "device": "npu:0", "minutes": 30.0}
    assert set(dry) == {"schema", "project", "started", "options", "summary", "checks"}
    for one in dry["checks"]:
        assert {name: type(value) for name, value in one.items() if name != "claim"} == FIELDS
        assert one["question"].endswith(("?", ".", ")"))
        verdicts = {"yes": "proved" if one["claim"] else "fact", "unknown": "missing"}
        assert one["verdict"] == verdicts[one["answer"]]
        assert one["numbers"] or one["verdict"] == "missing", one["name"]
    counts = {name: sum(one["verdict"] == name for one in dry["checks"]) for name in report.VERDICTS}
    assert dry["summary"] == {**counts, "needed and failed": []} and counts["proved"] > counts["fact"]


def test_a_line_of_the_file_is_a_check_in_its_order(tmp_path):
    file = tmp_path / "result.json"
    names = [one["name"] for one in run(file, "arithmetic.round", "arithmetic.tables", "collective")[1]["checks"]]
    lines = [line for line in file.read_text().splitlines() if '"name"' in line]
    assert [json.loads(line.strip().removesuffix(","))["name"] for line in lines] == names
    assert names == ["arithmetic.round", "arithmetic.tables", "collective.all_reduce"]
    assert [json.loads(line.strip().removesuffix(","))["verdict"] for line in lines] == ["fact", "proved", "missing"]


@pytest.mark.parametrize("claim", claims.CLAIMS.values(), ids=list(claims.CLAIMS))
def test_a_claim_is_a_sentence_of_its_page(claim):
    assert claim.sentence in " ".join((ROOT / claim.page).read_text().split())


def test_every_claim_has_a_check():
    runner.load()
    assert {one.claim for one in checks.CHECKS.values()} - {""} == set(claims.CLAIMS)


def test_the_file_names_neither_the_host_nor_its_folders(dry, monkeypatch):
    text = json.dumps(dry)
    assert socket.gethostname() not in text
    assert not re.search(r"/(home|root|tmp|usr|opt|work|data)/", text)
    monkeypatch.setattr(socket, "gethostname", lambda: "node17")
    assert checks.without_traces("node17: /opt/x-1/libnnopbase.so: 3/4 of a/b") == "(host): libnnopbase.so: 3/4 of a/b"


def test_numbers_that_are_asked_for_are_there(dry):
    numbers = {one["name"]: one["numbers"] for one in dry["checks"]}
    assert numbers["environment.versions"]["chip"] == "Ascend910B1"
    assert numbers["environment.versions"]["packages"]["torch-npu"] == torch_npu.__version__
    assert any("pertoken_scale" in one for one in numbers["environment.operators"]["schemas"]["npu_quant_matmul"])
    assert numbers["arithmetic.quotients_by_127"]["tensor / tensor"]["of"] == 0x7F80
    assert numbers["layout.padding"]["[40, 72]"]["padding"] == 48 * 96 - 40 * 72
    assert numbers["speed.refit_dense"]["refit NZ, of a copy"] > 0
    assert "1 x 128 x 192, eager" in numbers["speed.linear_7b"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Version=24.1.rc2\nascendhal_version=7.35.23\n", "24.1.rc2"),
        ("package_name=Ascend-cann-toolkit\nversion=8.5.0\ninnerversion=V100R001\npath=/usr/local\n", "8.5.0"),
        ("# version: 1.0\nruntime_version=[7.6.0:8.2.RC1]\n", "unknown: ValueError: no version in version.info"),
    ],
)
def test_versions_in_ascends_files(tmp_path, text, found):
    file = tmp_path / "version.info"
    file.write_text(text)
    assert environment._attempt(lambda: environment._version_in(file)) == found


def test_the_checks_that_are_not_possible_here_pass_where_there_are_graphs_and_events(with_graphs, tmp_path):
    code, content = run(tmp_path / "result.json", "graphs", "clock", "speed.linear_7b")
    assert code == 0 and len(answered(content, "yes")) == len(content["checks"]) == 5
    numbers = content["checks"][-1]["numbers"]
    assert numbers["64 x 128 x 192, captured"]["milliseconds"]["bf16"]["clock"] == "events"


def test_without_rich_the_table_is_plain(monkeypatch, tmp_path, capsys):
    right = importlib.import_module

    def without_rich(name, *args):
        if name.startswith("rich"):
            raise ImportError(name)
        return right(name, *args)

    monkeypatch.setattr(importlib, "import_module", without_rich)
    assert run(tmp_path / "result.json", "arithmetic.round")[0] == 0
    assert re.search(r"^arithmetic.round +fact +\d", capsys.readouterr().out, re.MULTILINE)


def test_a_name_that_there_is_not_is_refused(tmp_path, capsys):
    assert main(["--here", "--only", "arithmetics", "--out", str(tmp_path / "x.json")]) == 2
    assert "no check 'arithmetics'; there are: environment.versions, " in capsys.readouterr().err


def test_the_plain_clock_waits_and_the_order_of_rounds_rotates():
    calls = []
    setting = checks.Setting(torch.device("npu:0"), small=False)
    found = clock.compare({name: lambda name=name: calls.append(name) for name in "ab"}, setting, rounds=2)
    assert found["a"]["count"] == 2 and found["a"]["clock"] == "host"
    first = [name for i, name in enumerate(calls) if i == 0 or calls[i - 1] != name]
    assert first == ["a", "b", "a", "b", "a"]  # warm-up, then a b, then b a


FIVE = ["environment.versions", "arithmetic.round", "arithmetic.views", "layout.copy", "speed.panels", "clock.events"]


def strange_child(teller, names, device, small):
    """What a child may do on a real device, by the check that it comes to."""
    runner.load()
    if names[0] == "speed.panels":
        teller.send((runner.BROKEN, "no device any more"))
        return
    for name in names:
        teller.send((runner.BEGIN, name))
        if name == "arithmetic.round":
            os._exit(3)
        if name == "arithmetic.views":
            time.sleep(600)
        answer = "no" if name == "layout.copy" else "yes"
        teller.send((runner.END, checks.entry(checks.CHECKS[name], answer, "", 1.0, {})))
        if answer == "no":
            teller.send((runner.BROKEN, "aicore error"))
            return


def test_what_ends_a_process_or_never_returns_or_breaks_the_device_is_a_result():
    runner.load()
    budget = runner.Budget.of(minutes=60, most=8)
    events = list(runner.run_apart(FIVE, "npu:0", True, budget, work=strange_child))
    begun = [value for kind, value in events if kind == runner.BEGIN]
    results = {value["name"]: (value["verdict"], value["reason"]) for kind, value in events if kind == runner.END}
    assert begun == list(results) == FIVE
    assert results["environment.versions"] == ("fact", "")
    verdict, reason = results["arithmetic.round"]
    assert verdict == "fact" and has_line_naming(reason, "code 3")
    assert results["arithmetic.views"] == ("refuted", "no end after 8 s")
    assert results["layout.copy"] == ("fact", "")
    for name in FIVE[4:]:
        verdict, reason = results[name]
        assert verdict == "missing" and has_line_naming(reason, "not tried: … : no device any more")


def run_sh(*arguments: str, python: str = sys.executable, **more) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHON": python}
    command = [str(ROOT / "run.sh"), "test", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, **more)


def test_run_sh_on_a_device_that_computes_nothing(tmp_path):
    """In a process with CANN's stand-ins alone: no operator runs."""
    names = ["environment", "arithmetic.round", "layout.formula"]
    done = run_sh("npu-smoke", "--", "--small", "--only", *names, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    (file,) = tmp_path.glob("npu-smoke-*.json")
    content = json.loads(file.read_text())
    assert answered(content, "yes") == {"environment.versions", "environment.operators"}
    assert answered(content, "no") == {"arithmetic.round"} and answered(content, "unknown") == {"layout.formula"}
    assert content["summary"]["needed and failed"] == ["layout.formula"]
    assert "has no stub" in content["checks"][2]["reason"]
    assert "[3/4] arithmetic.round ... fact: no, " in done.stdout and str(file.name) in done.stdout


def test_run_sh_says_in_one_line_what_is_missing(tmp_path):
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without installed packages
    bare.chmod(0o755)
    done = run_sh("npu-smoke", python=str(bare))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "cannot import numpy (ModuleNotFoundError" in done.stderr and "source CANN's set_env.sh" in done.stderr
    done = run_sh("npu-smoke", python="/nonexistent/python3")
    assert done.returncode == 2 and has_line_naming(done.stderr, "PYTHON", "torch_npu")


def test_run_sh_lets_it_run_alone():
    for arguments in (("npu-smoke", "unit"), ("unit", "npu-smoke")):
        done = run_sh(*arguments)
        assert done.returncode == 2 and "alone" in done.stderr
