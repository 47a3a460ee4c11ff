"""tests/npu_smoke on host memory: every check runs, what the harness cannot do is named, and wrong results are seen.

The exit codes are what a person with an NPU looks at first; the JSON file is what they send back.
"""

import contextlib
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
from npu_smoke import checks, clock, environment, graphs, report, runner
from npu_smoke.__main__ import main
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from ascend_quant.kernels import reciprocals

ROOT = Path(__file__).parents[2]
NOT_HERE = {"graphs.linear_nd", "graphs.linear_nz", "graphs.experts", "clock.events"}
FIELDS = {"name": str, "question": str, "needed": bool, "status": str, "error": str, "seconds": float, "numbers": dict}


def run(file: Path, *only: str) -> tuple[int, dict]:
    """The exit code and the file of a dry run in this process."""
    chosen = ["--only", *only] if only else []
    code = main(["--small", "--here", "--json", str(file), *chosen])
    return code, json.loads(file.read_text())


def with_status(content: dict, status: str) -> set[str]:
    return {one["name"] for one in content["checks"] if one["status"] == status}


@pytest.fixture(scope="module")
def dry(tmp_path_factory) -> dict:
    """A dry run of all checks."""
    graphs._why_no_graphs.cache_clear()
    code, content = run(tmp_path_factory.mktemp("smoke") / "result.json")
    assert code == 0, with_status(content, "failed")
    return content


def test_every_check_runs_and_what_is_not_possible_here_says_why(dry):
    assert [one["name"] for one in dry["checks"]] == list(checks.CHECKS)
    assert with_status(dry, "not possible") == NOT_HERE and not with_status(dry, "failed")
    errors = {one["name"]: one["error"] for one in dry["checks"]}
    for name in NOT_HERE - {"clock.events"}:
        assert "captured in an ACL graph: Failed to find function aclmdlRICaptureBegin" in errors.pop(name)
    assert "no time apart" in errors.pop("clock.events")
    assert not any(errors.values())


def test_the_file_has_what_its_schema_says(dry):
    assert dry["schema"] == report.SCHEMA and dry["options"] == {"small": True, "only": [], "device": "npu:0"}
    assert set(dry) == {"schema", "project", "started", "options", "summary", "checks"}
    for one in dry["checks"]:
        assert {name: type(value) for name, value in one.items()} == FIELDS
        assert one["status"] in ("passed", "failed", "not possible") and one["question"].endswith(("?", ".", ")"))
        assert one["numbers"] or one["status"] == "not possible", one["name"]
    counts = {status: len(with_status(dry, status)) for status in ("passed", "failed", "not possible")}
    assert dry["summary"] == {**counts, "needed and failed": []}


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


def test_wrong_codes_are_seen_where_codes_are_compared(monkeypatch, tmp_path):
    right = reciprocals.codes_of
    monkeypatch.setattr(reciprocals, "codes_of", lambda *args: right(*args) + 1)
    code, content = run(tmp_path / "result.json", "arithmetic", "layout", "quantize", "refit", "products.nz")
    written = {f"quantize.{name}" for name in ("rows", "nd", "nz", "experts", "unaligned", "columns")}
    expected = written | {"arithmetic.scales_and_factors", "refit.addresses"}
    assert code == 1 and with_status(content, "failed") == expected
    assert set(content["summary"]["needed and failed"]) == expected
    error = next(one["error"] for one in content["checks"] if one["name"] == "quantize.rows")
    assert re.search(r"codes of 64 x 128: 8192 of 8192 differ, by \d+ at most", error)


def test_a_wrong_scale_is_seen(monkeypatch, tmp_path):
    right = reciprocals.scale_and_factor

    def one_ulp_more(absmax_N):
        scale, factor = right(absmax_N)
        return (scale.view(torch.int32) + (scale > 0)).view(torch.float32), factor

    monkeypatch.setattr(reciprocals, "scale_and_factor", one_ulp_more)
    code, content = run(tmp_path / "result.json", "arithmetic.scales_and_factors", "quantize.copies")
    assert code == 1 and with_status(content, "failed") == {"arithmetic.scales_and_factors"}
    assert "by 1 units in the last place at most" in content["checks"][0]["error"]


@pytest.mark.parametrize(
    ("operator", "wrong", "failed"),
    [
        ("npu_quant_matmul", lambda y: y + 1, {"products.int32", "products.nd", "products.nz", "products.fp16"}),
        ("npu_grouped_matmul", lambda y: [y[0] * 1.02], {"experts.nd", "experts.nz"}),
        ("npu_dequant_swiglu_quant", lambda y: (y[0] + 2, y[1]), {"experts.dequant_swiglu_quant"}),
        ("npu_grouped_matmul_swiglu_quant", lambda y: (y[0], y[1] * 1.01, y[2]), {"experts.swiglu_quant"}),
    ],
)
def test_an_operator_that_is_wrong_is_seen_by_its_checks(monkeypatch, tmp_path, operator, wrong, failed):
    right = getattr(torch_npu, operator)

    def changed(*args, **kwargs):
        y = right(*args, **kwargs)
        return y if isinstance(y, list) and y[0].dtype == torch.int32 else wrong(y)

    monkeypatch.setattr(torch_npu, operator, changed)
    code, content = run(tmp_path / "result.json", "layout", "products", "experts")
    assert code == 1 and set(content["summary"]["needed and failed"]) == failed


def test_another_layout_than_ours_is_seen(monkeypatch, tmp_path):
    from npu_host import formats

    right = formats._blocks
    monkeypatch.setattr(formats, "ROWS", 32)
    monkeypatch.setattr(formats, "_blocks", lambda t: (right(t)[0], -(-t.shape[-2] // 32), *right(t)[2:]))
    _, content = run(tmp_path / "result.json", "layout.formula", "arithmetic.round")
    assert with_status(content, "passed") == {"arithmetic.round"}


def test_an_operator_that_raises_or_lacks_stops_nothing(monkeypatch, tmp_path):
    def raises(*args, **kwargs):
        raise RuntimeError("/usr/local/Ascend/opp/libopapi.so: aicore error 507015")

    monkeypatch.setattr(torch_npu, "npu_dynamic_quant", raises)
    monkeypatch.delattr(torch_npu, "npu_grouped_matmul_swiglu_quant_v2")
    code, content = run(tmp_path / "result.json", "quantize.dynamic_quant", "experts.swiglu_quant_v2", "speed.panels")
    assert code == 0, "neither is needed"
    found = {one["name"]: (one["status"], one["error"]) for one in content["checks"]}
    assert found["quantize.dynamic_quant"] == ("failed", "RuntimeError: libopapi.so: aicore error 507015")
    assert found["experts.swiglu_quant_v2"][0] == "not possible"
    assert "has no npu_grouped_matmul_swiglu_quant_v2" in found["experts.swiglu_quant_v2"][1]
    assert found["speed.panels"] == ("passed", "")


class Recorded(TorchDispatchMode):
    """Stands in for a captured graph: the operators of a block, carried out again into the same tensors."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self):
        for func, args, kwargs, result in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_flatten(result)[0], tree_flatten(again)[0], strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class HostEvent:
    """Stands in for torch.npu.Event, by the host's clock."""

    def __init__(self, enable_timing):
        self.time = None

    def record(self):
        self.time = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return 1e3 * (end.time - self.time)


@pytest.fixture
def with_graphs(monkeypatch):
    """Graphs and events as if this were a device that has them."""

    @contextlib.contextmanager
    def graph(one):
        with one:
            yield

    monkeypatch.setattr(torch.npu, "NPUGraph", Recorded)
    monkeypatch.setattr(torch.npu, "graph", graph)
    monkeypatch.setattr(torch.npu, "Event", HostEvent)
    graphs._why_no_graphs.cache_clear()
    yield
    graphs._why_no_graphs.cache_clear()


def test_the_checks_that_are_not_possible_here_pass_where_there_are_graphs_and_events(with_graphs, tmp_path):
    code, content = run(tmp_path / "result.json", "graphs", "clock", "speed.linear_7b")
    assert code == 0 and len(with_status(content, "passed")) == len(content["checks"]) == 5
    numbers = content["checks"][-1]["numbers"]
    assert numbers["64 x 128 x 192, captured"]["milliseconds"]["bf16"]["clock"] == "events"


def test_a_graph_that_keeps_the_old_weights_is_seen(with_graphs, monkeypatch, tmp_path):
    monkeypatch.setattr(Recorded, "replay", lambda self: None)
    code, content = run(tmp_path / "result.json", "graphs")
    assert code == 1 and len(content["summary"]["needed and failed"]) == 3


def test_a_refit_that_moves_a_weight_is_seen(monkeypatch, tmp_path):
    right = graphs.Resident.write

    def moving(self, seed):
        self.scale_bf16 = self.scale_bf16.clone()
        return right(self, seed)

    monkeypatch.setattr(graphs.Resident, "write", moving)
    code, content = run(tmp_path / "result.json", "refit")
    assert code == 1 and with_status(content, "failed") == {"refit.addresses"}


def test_without_rich_the_table_is_plain(monkeypatch, tmp_path, capsys):
    right = importlib.import_module

    def without_rich(name, *args):
        if name.startswith("rich"):
            raise ImportError(name)
        return right(name, *args)

    monkeypatch.setattr(importlib, "import_module", without_rich)
    assert run(tmp_path / "result.json", "arithmetic.round")[0] == 0
    assert re.search(r"^arithmetic.round +passed +\d", capsys.readouterr().out, re.MULTILINE)


def test_a_name_that_there_is_not_is_refused(tmp_path, capsys):
    assert main(["--here", "--only", "arithmetics", "--json", str(tmp_path / "x.json")]) == 2
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
        status = "failed" if name == "layout.copy" else "passed"
        teller.send((runner.END, checks.entry(checks.CHECKS[name], status, "", 1.0, {})))
        if status == "failed":
            teller.send((runner.BROKEN, "aicore error"))
            return


def test_what_ends_a_process_or_never_returns_or_breaks_the_device_is_a_result():
    runner.load()
    events = list(runner.run_apart(FIVE, "npu:0", True, 20, work=strange_child))
    begun = [value for kind, value in events if kind == runner.BEGIN]
    results = {value["name"]: (value["status"], value["error"]) for kind, value in events if kind == runner.END}
    assert begun == list(results) == FIVE
    assert results["environment.versions"] == ("passed", "")
    assert results["arithmetic.round"] == ("failed", "its process ended with code 3")
    assert results["arithmetic.views"] == ("failed", "no end after 20 s")
    assert results["layout.copy"] == ("failed", "")
    for name in FIVE[4:]:
        assert results[name] == ("failed", "not tried: the device does not work any more: no device any more")


def run_sh(*arguments: str, python: str = sys.executable, **more) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHON": python}
    command = [str(ROOT / "run.sh"), "test", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, **more)


def test_run_sh_on_a_device_that_computes_nothing(tmp_path):
    """In a process with CANN's stand-ins alone: no operator runs."""
    names = ["environment", "arithmetic.round", "layout.formula"]
    done = run_sh("npu-smoke", "--", "--small", "--only", *names, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    (file,) = tmp_path.glob("npu-smoke-*.json")
    content = json.loads(file.read_text())
    assert with_status(content, "passed") == {"environment.versions", "environment.operators"}
    assert with_status(content, "failed") == {"arithmetic.round", "layout.formula"}
    assert content["summary"]["needed and failed"] == ["layout.formula"]
    assert "has no stub" in content["checks"][2]["error"]
    assert "[3/4] arithmetic.round ... no, " in done.stdout and str(file.name) in done.stdout


def test_run_sh_says_in_one_line_what_is_missing(tmp_path):
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without installed packages
    bare.chmod(0o755)
    done = run_sh("npu-smoke", python=str(bare))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "cannot import numpy (ModuleNotFoundError" in done.stderr and "source CANN's set_env.sh" in done.stderr
    done = run_sh("npu-smoke", python="/nonexistent/python3")
    assert done.returncode == 2 and "set PYTHON to the Python that has your torch_npu" in done.stderr


def test_run_sh_lets_it_run_alone():
    for arguments in (("npu-smoke", "unit"), ("unit", "npu-smoke")):
        done = run_sh(*arguments)
        assert done.returncode == 2 and "alone" in done.stderr
