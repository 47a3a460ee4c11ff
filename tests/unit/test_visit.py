"""benchmarks/visit.sh: each part within its minutes, whatever became of the others. With a stand-in for run.sh."""

import os
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

import pytest
import typer

VISIT = Path(__file__).parents[2] / "benchmarks" / "visit.sh"
RUN_SH = """#!/bin/bash
echo $(for name in ${RUN_SH_SAYS:-}; do echo "${!name:-unset}"; done) "$@" >>"$CALLS"
case $* in
*attention*) exit 3 ;;
"test gpu"*) echo "run.sh: tests/gpu: passed" ;;
"bench train"*) trap 'echo interrupted; exit 1' INT; while :; do sleep 0.1; done ;;
esac
"""


@pytest.fixture
def visit(tmp_path: Path):
    """The script in a checkout of its own; returns how it ended, and the arguments of each call of run.sh."""
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(VISIT, tmp_path / "benchmarks")
    (tmp_path / "run.sh").write_text(RUN_SH)
    (tmp_path / "run.sh").chmod(0o755)
    calls = tmp_path / "calls"

    def call(*parts: str, **variables: str) -> tuple[subprocess.CompletedProcess, list[str]]:
        calls.write_text("")
        command = [tmp_path / "benchmarks" / "visit.sh", tmp_path / "out", *parts]
        environment = os.environ | {"CALLS": str(calls), "PYTHON": "python3"} | variables
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        return run, calls.read_text().splitlines()

    return call


def test_a_part_that_fails_or_runs_out_of_time_does_not_stop_the_others(visit, tmp_path):
    run, calls = visit(MINUTES_train="0.02")
    assert run.returncode == 0, run.stderr
    assert [call.split()[:2] for call in calls] == [["bench", "attention"], ["test", "gpu"], ["bench", "train"]]
    table = {line.split()[0]: line for line in (tmp_path / "out" / "table.txt").read_text().splitlines()[1:]}
    assert table["attention"].split()[1] == "3" and table["tests"].split()[1] == "0"
    assert "tests/gpu: passed" in table["tests"]
    assert "out of time" in table["train"] and table["train"].endswith("interrupted")


def test_parts_are_chosen(visit):
    assert visit("demo", TRY="cpu")[1][0].startswith("demo --arms int8")
    run, calls = visit("tests", "rollout")
    assert run.returncode == 2 and "rollout" in run.stderr and calls == []
    assert visit(PYTHON="")[0].returncode == 2


BENCHMARKS = ["attention", "train", "context", "decode_7b", "decode_32b", "sync", "experts", "offloaded", "apart"]


@pytest.mark.parametrize("where", ["gpu", "cpu"])
def test_benchmarks_have_the_options_that_it_gives(visit, where):
    run, calls = visit(*BENCHMARKS, TRY=where, MINUTES_train="0.02")
    assert len(calls) == len(BENCHMARKS), run.stderr
    for part, call in zip(BENCHMARKS, calls, strict=True):
        bench, name, *options = call.split()
        command = typer.main.get_command(import_module(f"benchmarks.{name}").app)
        assert bench == "bench" and command.make_context(name, options).params["out"].name == f"{part}.json"


def test_apart_goes_through_sockets_and_changes_settings_that_verl_has(visit):
    import yaml
    from verl import trainer

    call = visit("apart", RUN_SH_SAYS="NCCL_P2P_DISABLE NCCL_SHM_DISABLE")[1][0].split()
    assert call[:2] == ["1", "1"]  # the variables, as run.sh sees them
    settings = [setting.lstrip("+").partition("=")[0].split(".") for setting in call[call.index("--") + 1 :]]
    rollout = yaml.safe_load((Path(trainer.__file__).parent / "config/rollout/rollout.yaml").read_text())
    assert "update_weights_bucket_megabytes" in rollout["checkpoint_engine"]
    assert ["actor_rollout_ref", "rollout", "checkpoint_engine", "update_weights_bucket_megabytes"] in settings
