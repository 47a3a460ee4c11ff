"""The conversion benchmark at a small size: its rows, its bars, what it leaves behind. No time is judged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")
from typer.testing import CliRunner

from benchmarks import convert as benchmark

ROOT = Path(__file__).parents[2]


def test_command_writes_rows_for_every_method_and_leaves_nothing_behind(tmp_path):
    out = tmp_path / "result.json"
    (tmp_path / "disk").mkdir()
    options = [
        "--model",
        "tiny-moe",
        "--layers",
        "2",
        "--rounds",
        "2",
        "--schemes",
        "int8,fp8_block",
        "--out",
        str(out),
    ]
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.convert", str(tmp_path / "disk"), *options],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode in (0, 1) and "throughput" in run.stdout, run.stdout + run.stderr
    assert list((tmp_path / "disk").iterdir()) == []
    found = json.loads(out.read_text())
    assert found["hardware"]["cores"] and found["versions"]["torch"] and found["disk"]
    assert str(tmp_path) not in json.dumps(found["command"][:4])
    rows = {row["method"]: row for row in found["rows"]}
    cores = benchmark.cores()
    assert rows.keys() == {"copy", *(f"{s}, {n} of {cores} cores" for s in ("int8", "fp8_block") for n in {1, cores})}
    for row in rows.values():
        assert len(row["samples"]) == 2 and min(row["samples"]) > 0
        assert row["bytes_per_second"] * row["seconds"]["median"] == pytest.approx(found["bytes"])
    assert rows["copy"]["of_a_copy"] == 1


def row(method: str, seconds: float, ratio: float) -> dict:
    return {"method": method, "seconds": {"median": seconds}, "of_a_copy": ratio}


def test_bars_are_missed_met_or_not_judged(monkeypatch):
    monkeypatch.setattr(benchmark, "cores", lambda: 2)
    found = [
        row("copy", 1.0, 1.0),
        row("int8, 1 of 2 cores", 3.0, 0.3),
        row("int8, 2 of 2 cores", 1.6, 0.6),
        row("fp8, 1 of 2 cores", 3.0, 0.9),
        row("fp8, 2 of 2 cores", 2.9, 0.4),
        row("int4_g32, 1 of 2 cores", 3.0, 0.1),
        row("int4_g32, 2 of 2 cores", 1.5, 0.1),
    ]
    judged = {bar["text"]: bar["met"] for bar in benchmark.bars(found, "tmpfs")}
    copy, speed = ": of a copy's throughput", ": speed-up by core"
    assert judged == {
        f"int8{copy}": True,
        f"int8{speed}": True,
        f"fp8{copy}": False,
        f"fp8{speed}": False,
        f"int4_g32{copy}": None,
        f"int4_g32{speed}": True,
    }
    assert {bar["met"] for bar in benchmark.bars(found, "ext4") if bar["text"].endswith(speed)} == {None}


def test_ratios_are_taken_round_by_round():
    (copied, own) = benchmark.rows({"copy": [1.0, 10.0, 2.0], "int8, 1 of 2 cores": [2.0, 5.0, 1.0]}, 100)
    assert copied["of_a_copy"] == 1 and own["of_a_copy"] == 2.0  # of 0.5, 2 and 2
    assert own["bytes_per_second"] == 50


@pytest.mark.parametrize("options, said", [(["--schemes", "int8,bf16"], "'bf16' is no scheme"), ([], "is no folder")])
def test_wrong_usage(options, said, tmp_path):
    run = CliRunner().invoke(benchmark.app, [str(tmp_path / "no" if not options else tmp_path), *options])
    assert run.exit_code == 2 and said in run.output
