"""`ascend-quant convert`: output, progress and exit status."""

import json
import os
import re
import subprocess
import sys

import convert_cases as cases
import pytest
from command_runs import plain, runner

from ascend_quant.commands.convert import convert

run = runner(convert)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return cases.write(tmp_path_factory.mktemp("source") / "in", cases.state())


def test_json_is_all_that_stdout_has(source, tmp_path):
    result = run(source, tmp_path / "out", "--scheme", "fp8_block:128x128", "--json", "--ignore", "re:.*o_proj")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    tensors = cases.read(source)
    assert said["scheme"] == "fp8_block" and said["format"] == "fp8" and said["shards"] == 3 and said["resumed"] == 0
    assert said["bytes_in"] == sum(tensor.nbytes for tensor in tensors.values())
    assert said["bytes_out"] == sum(path.stat().st_size for path in (tmp_path / "out").glob("*.safetensors"))
    count = sum(map(cases.is_quantized, tensors))
    assert said["weights"] == {"quantized": count - 2, "ignored": 2, "router": 2, "head": 1, "embedding": 1}


def test_the_summary_says_what_was_not_quantized_and_there_is_a_way_back(source, tmp_path):
    result = run(source, tmp_path / "out", "--scheme", "int8", "--workers", "2")
    assert result.exit_code == 0, result.output
    for said in ("quantized", "not quantized: router", "3 files", f"written: {tmp_path / 'out'}"):
        assert said in plain(result.stdout)
    (amount, unit), *_ = re.findall(r"to ([\d,.]+) (\w+) in", plain(result.stdout))
    written = sum(path.stat().st_size for path in (tmp_path / "out").glob("*.safetensors"))
    assert float(amount) * {"bytes": 1, "kB": 1e3, "MB": 1e6}[unit] == pytest.approx(written, rel=0.1), "not 0.00 GB"
    assert run(tmp_path / "out", tmp_path / "back", "--scheme", "bf16").exit_code == 0
    assert cases.read(tmp_path / "back").keys() == cases.read(source).keys()


def test_wrong_usage_ends_with_2(source, tmp_path):
    for options, said in (
        ((), "--scheme"),
        (("--scheme", "int5"), "int5"),
        (("--scheme", "fp8", "--format", "modelslim"), "compressed-tensors"),
        (("--scheme", "bf16", "--format", "fp8"), "--format"),
        (("--scheme", "bf16", "--ignore", "lm_head"), "--ignore"),
        (("--scheme", "int8", "--workers", "0"), "workers"),
    ):
        result = run(source, tmp_path / "out", *options)
        assert result.exit_code == 2 and said in plain(result.stderr)
    (tmp_path / "full" / "a").mkdir(parents=True)
    for folder, out, named in (
        (source, source, "'OUT'"),
        (source, tmp_path / "full", "'OUT'"),
        (source, tmp_path / "no" / "such", "'OUT'"),
        (tmp_path / "nothing", tmp_path / "out", "'IN'"),
    ):
        result = run(folder, out, "--scheme", "int8")
        assert result.exit_code == 2 and named in plain(result.stderr)


def test_what_cannot_be_converted_ends_with_1_and_one_line(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for folder, out, named in (
        (tmp_path / "in", "out", str(tmp_path / "in")),
        (source, "/proc/out", "/proc/out.partial"),  # what the system refuses
    ):
        result = run(folder, out, "--scheme", "int8")
        assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
        (line,) = result.stderr.strip().splitlines()
        assert named in line
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_texts_are_utf_8_whatever_the_locale(source, tmp_path):
    command = "import sys; from ascend_quant.commands.app import app; app(sys.argv[1:])"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    words = ["convert", str(source), str(tmp_path / "out"), "--scheme", "int8"]
    subprocess.run([sys.executable, "-c", command, *words], env=environment, check=True, capture_output=True)
    assert cases.CONFIG["name"] in (tmp_path / "out" / "config.json").read_text(encoding="utf-8")
