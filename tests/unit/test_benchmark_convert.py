"""The conversion benchmark at a small size: its rows, and what it leaves behind. No time is judged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import convert as benchmark

ROOT = Path(__file__).parents[2]


def test_command_writes_rows_for_every_method_and_leaves_nothing_behind(tmp_path):
    out, disk = tmp_path / "result.json", tmp_path / "disk"
    disk.mkdir()
    options = ["--model", "tiny-moe", "--layers", "2", "--rounds", "2", "--schemes", "int8,fp8_block"]
    command = [sys.executable, "-m", "benchmarks.convert", str(disk), *options, "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    assert list(disk.iterdir()) == []
    found = json.loads(out.read_text())
    assert found["hardware"]["cores"] and found["versions"]["torch"]
    rows = {row["method"]: row for row in found["rows"]}
    assert rows.keys() == {"copy", "int8", "fp8_block"}
    for row in rows.values():
        assert len(row["samples"]) == 2 and min(row["samples"]) > 0
        assert row["bytes_per_second"] * row["seconds"]["median"] == pytest.approx(found["bytes"])
    assert rows["copy"]["of_a_copy"] == 1


def test_ratios_are_taken_round_by_round():
    (copied, own) = benchmark.rows({"copy": [1.0, 10.0, 2.0], "int8": [2.0, 5.0, 1.0]}, 100)
    assert copied["of_a_copy"] == 1 and own["of_a_copy"] == 2.0  # of 0.5, 2 and 2
    assert own["bytes_per_second"] == 50
