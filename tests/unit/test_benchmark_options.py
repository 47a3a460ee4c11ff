"""Every benchmark refuses a wrong option before anything starts, and says which, and what would be right."""

import pytest
from naming import has_line_naming
from typer.testing import CliRunner

from benchmarks import convert, refit, rollout, study, sync, train


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        (train, ["--answers", "64,x"], ("--answers", "'64,x'")),
        (train, ["--arms", "int9"], ("--arms", "'int9'")),
        (train, ["--recipe", "nowhere"], ("--recipe", "nowhere")),
        (train, ["--recipe", "qwen3-4b-fp8"], ("--model", "qwen3-4b")),
        (train, ["--gpus", "2", "--tensor-parallel", "4"], ("--recipe", "4")),
        (sync, ["--arms", "fp8x"], ("--arms", "'fp8x'")),
        (sync, ["--engines", "2"], ("--engines", "2")),
        (sync, ["--engines", "1", "--arms", "plain"], ("--arms", "plain")),
        (sync, ["--layers", "99"], ("--layers", "99")),
        (study, ["--rates", "1e-4,fast"], ("--rates", "fast")),
        (study, ["--arms", "int9"], ("--arms", "int9")),
        (convert, ["FOLDER", "--schemes", "int8,bf16"], ("--schemes", "bf16")),
        (convert, ["FOLDER", "--model", "huge"], ("--model", "huge")),
        (rollout, ["--models", "8b"], ("--models", "'8b'", "30b-a3b")),
        (rollout, ["--schemes", "int8"], ("--schemes", "'int8'", "int8-ours")),
        (rollout, ["--batch", "64,x"], ("--batch", "'64,x'")),
        (rollout, ["--context", "1k", "--models", "tiny"], ("--context", "512")),
        (rollout, ["--context", "64", "--kv-cache", "int4"], ("--kv-cache", "'int4'", "fp8-vllm")),
        (rollout, ["--context", "64", "--device", "cpu", "--models", "tiny"], ("--kv-cache", "int8")),
        (refit, ["--device", "tpu"], ("--device", "'tpu'")),
        (refit, ["--device", "cpu", "--layers", "3"], ("--layers", "tiny", "3")),
        (refit, ["--device", "cpu", "--parts", ""], ("--parts", "kernels")),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(command, arguments, words, tmp_path):
    told = [str(tmp_path) if one == "FOLDER" else one for one in arguments]
    told += ["--folder", str(tmp_path)] if command in (train, sync, study) else []
    run = CliRunner().invoke(command.app, told, env={"COLUMNS": "200"})
    assert run.exit_code == 2 and not list(tmp_path.iterdir())
    assert has_line_naming(" ".join(run.output.replace("│", " ").split()), *words)
