"""The decode benchmark's shapes and tables, and the command itself in Triton's interpreter. No time is judged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from benchmarks import cache_decode
from benchmarks.cache_methods import Ours, Shape, tables

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("context", [1024, 30720])
@pytest.mark.parametrize("batch", [8, 160])
def test_ragged_lengths_have_as_many_tokens_as_equal_ones(context, batch):
    ragged, equal = (Shape(4, 28, context, batch, kind).lengths() for kind in (True, False))
    assert ragged.sum() == equal.sum() == context * batch
    assert ragged.min() >= 1 and ragged.max() > 1.5 * context and set(equal.tolist()) == {context}


def test_tables_share_no_block_while_the_pool_has_some():
    shape = Shape(4, 28, 1000, 8, True)
    needed = int(((shape.lengths() + 63) // 64).sum())
    first, second, third = tables(shape, 64, 2 * needed, 3, torch.device("cpu"))
    used = torch.arange(first.shape[1]) < ((shape.lengths() + 63) // 64)[:, None]
    assert sorted(torch.cat([first[used], second[used]]).tolist()) == list(range(2 * needed))
    assert sorted(third[used].tolist()) == list(range(needed))  # the pool is used up


def test_a_row_of_the_table():
    shape = Shape(8, 40, 8192, 32, True)
    row = {
        **shape._asdict(),
        "us": {Ours.name: 100.0, "FA3 bf16": 180.0},
        "gb_s": {Ours.name: 3000.0, "FA3 bf16": 3200.0},
        "ratio": {Ours.name: 1.4, "FA3 bf16": 1.3},
        "tiles": "(64, 2, 4, 4, False)",
    }
    shown = cache_decode.table([row]).splitlines()[1]
    assert "40/8" in shown and "FA3 bf16: 180 (3200, 1.30) [1.80]" in shown


def test_the_command_checks_itself(tmp_path):
    command = [sys.executable, "-m", "benchmarks.cache_decode", "--device", "cpu", "--page", "64"]
    variables = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    out = tmp_path / "found.json"
    subprocess.run([*command, "--out", str(out)], check=True, env=variables, cwd=ROOT, capture_output=True)
    found = json.loads(out.read_text())
    assert found["page"] == 64 and all(0 <= error < 0.01 for error in found["check"].values())
