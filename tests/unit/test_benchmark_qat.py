"""The benchmark of fake quantization at a small size: what it counts, by hand; no time is judged."""

import json

import pytest
import torch

pytest.importorskip("transformers", reason="its models are what is timed")
pytest.importorskip("typer")
from torch import nn
from typer.testing import CliRunner

from benchmarks import qat as benchmark
from benchmarks.models import get_model

SIZES = ["--model", "tiny", "--layers", "2", "--tokens", "32", "--rounds", "2"]


def test_the_command_writes_a_row_for_every_method(tmp_path):
    out = tmp_path / "result.json"
    run = CliRunner().invoke(benchmark.app, [*SIZES, "--schemes", "int8,int4_g32", "--out", str(out)])
    assert run.exit_code == 0, run.output
    rows = json.loads(out.read_text())["rows"]
    keys = [(row["qat"], row["recompute"]) for row in rows]
    assert keys == [(name, recompute) for recompute in (False, True) for name in ("none", "int8", "int4_g32")]
    by_key = dict(zip(keys, rows, strict=True))
    matrices = [shape for shape in get_model("tiny").cut(2).shapes().items() if "proj.weight" in shape[0]]
    quantized = sum(2 * shape[0] * shape[1] for _, shape in matrices)
    for recompute in (False, True):
        plain, int8 = by_key["none", recompute], by_key["int8", recompute]
        assert plain["of_plain"] == 1 and min(int8["samples_ms"]) > 0
        assert int8["operators"] > plain["operators"]
        assert int8["parameter_bytes"] == plain["parameter_bytes"]
        # with checkpointing a weight is kept while its layer is computed, which the forward pass's end does not see
        assert int8["kept_bytes"] - plain["kept_bytes"] == (0 if recompute else quantized)


def test_operators_are_counted_without_views():
    with benchmark.Operators() as operators:
        nn.functional.relu(torch.ones(2, 3).t() + 1)
    assert operators.count == 3  # ones, add, relu


@pytest.mark.parametrize("options", [["--schemes", "fp8"], ["--device", "cuda"], ["--device", "foo"]])
def test_wrong_use(options, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert CliRunner().invoke(benchmark.app, options).exit_code == 2
