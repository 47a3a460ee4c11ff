"""The command line of launches: what is refused, in one line and with the right code, and what is handed on.

The plan of this machine is asked of a real node process; nothing is reached over a network.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from naming import has_line_naming
from plan_cases import facts
from typer.testing import CliRunner

from launch.cli import app
from launch.cluster import transport
from launch.errors import LaunchError
from launch.plan import dry_run

ROOT = Path(__file__).parents[2]


def run(*arguments: str, **environment: str):
    return CliRunner(env=environment).invoke(app, arguments)


def shell(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """run.sh, with this interpreter in place of the environment from the lock."""
    variables = os.environ | {"PYTHON": sys.executable} | environment
    command = [str(ROOT / "run.sh"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=240)


def written(folder: Path, *addresses: str, **fields) -> str:
    file = folder / "cluster.yaml"
    tree = {"stack": "cpu", "hosts": [{"address": address} for address in addresses], "shared": ["/shared"]}
    file.write_text(yaml.safe_dump(tree | fields))
    return str(file)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-recipe"], "no recipe 'no-recipe'"),
        (["addition-int8"], "--set nodes=1"),
        (["addition-int8", "--set", "nodes"], "--set nodes: write KEY=VALUE"),
        (["addition-int8", "--set", "node=1"], "did you mean nodes?"),
        (["addition-int8", "--set", "nodes=many"], "nodes: 'many' is wrong"),
        (["addition-int8", "--cluster", "a2-2-node"], "did you mean a2-2-nodes?"),
        (["addition-int8", "--on-this-node"], "say with --cluster which hosts there are"),
        (["addition-int8", "--json"], "--json is for --dry-run"),
        *(
            (["addition-int8", "--set", "nodes=1", "--", one], f"{one!r} is no setting")
            for one in ("save", "=5", "~", "-cn=x", "--multirun=1", "a b=1", "")
        ),
        *(
            (["addition-int8", "--set", "nodes=1", "--", one], said)
            for one, said in (
                ("trainer.nnodes=4", "trainer.nnodes … (1): --set nodes="),
                ("++trainer.nnodes=4", "trainer.nnodes is made"),
                ("~trainer.nnodes", "trainer.nnodes is made"),
                ("trainer={nnodes: 4}", "trainer holds trainer.nnodes"),
                ("actor_rollout_ref.rollout.n=0", "--set rollout.n="),
                ("actor_rollout_ref.rollout.tensor_model_parallel_size=3", "--set rollout.tensor_parallel="),
                ("actor_rollout_ref.actor.use_torch_compile=true", "actor.fsdp_config.use_torch_compile"),
                ("actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16", "rotary"),
                ("++actor_rollout_ref.model.path=/m", "actor_rollout_ref.model.path … --model"),
                ("actor_rollout_ref.model={path: /m}", "actor_rollout_ref.model holds … model.path"),
                ("data.train_files=[/a,/b]", "data.train_files … --data"),
                ("data.val_files=/v", "data.val_files … --data"),
                ("~trainer.default_local_dir", "trainer.default_local_dir … --out"),
            )
        ),
        (["addition-int8", "--cluster", "a2-2-nodes"], "--set stack=ascend-cann9.1"),
    ],
)
def test_what_is_wrong_ends_with_code_2(arguments: list[str], said: str):
    shown = run("train", *arguments)
    assert shown.exit_code == 2
    assert has_line_naming(shown.stderr, said) and "Traceback" not in shown.stderr


@pytest.mark.parametrize(
    ("addresses", "said"),
    [
        (["192.0.2.250", "192.0.2.251"], "this machine … (192.0.2.250, 192.0.2.251)"),
        (["192.0.2.250", "192.0.2.251", "localhost"], "localhost … loopback"),
    ],
)
def test_a_node_that_is_not_in_the_inventory_is_told_so(tmp_path: Path, addresses: list[str], said: str):
    cluster = written(tmp_path, *addresses)
    shown = run("train", "addition-int8", "--cluster", cluster, "--on-this-node", "--out", "/shared/x")
    assert shown.exit_code == 2
    assert has_line_naming(shown.stderr, said)


def test_a_node_must_know_where_the_others_write(tmp_path: Path):
    from launch import network

    mine = [ip for name, ips in network.nics().items() for ip in ips if name != "lo"]
    if not mine:
        pytest.skip("this machine has no address but loopback")
    cluster = written(tmp_path, mine[0], "192.0.2.251")
    shown = run("train", "addition-int8", "--cluster", cluster, "--on-this-node")
    assert shown.exit_code == 2
    assert "say which with --out" in shown.stderr
    cluster = written(tmp_path, "192.0.2.250", "192.0.2.251", mine[0])
    shown = run("train", "addition-int8", "--cluster", cluster, "--on-this-node", "--out", "/shared/x")
    assert has_line_naming(shown.stderr, "first 2")


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node process may be slow to answer on a busy machine: five seconds are for people."""
    monkeypatch.setattr(transport, "ASK_SECONDS", 120)


def test_the_plan_of_this_machine(tmp_path: Path, patience: None, monkeypatch: pytest.MonkeyPatch):
    """The node process is a real one: it finds lo and 127.0.0.1, and that the data are missing."""
    monkeypatch.setattr(dry_run, "installed", lambda: None)
    arguments = ["train", "addition-int8", "--set", "nodes=1", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    shown = run(*arguments, "--dry-run", "--json", "--", "trainer.save_freq=7", OMP_NUM_THREADS="3", HF_TOKEN="hunter2")
    assert shown.exit_code == 3, shown.stderr
    plan = json.loads(shown.stdout)
    (host,) = plan["hosts"]
    assert (host["role"], host["here"], host["nic"], host["address"]) == ("head", True, "lo", "127.0.0.1")
    assert [problem for problem in host["problems"] if "addition/train.parquet" in problem]
    threads = next(one for one in host["environment"] if one["name"] == "OMP_NUM_THREADS")
    assert (threads["value"], threads["source"], threads["instead_of"]) == ("3", "shell", "1")
    assert "hunter2" not in shown.stdout
    assert plan["job"]["entrypoint"][-1] == "trainer.save_freq=7"
    assert "trainer.nnodes=1" in plan["job"]["entrypoint"]
    assert not (tmp_path / "out").exists()


def test_the_same_plan_as_text(tmp_path: Path, patience: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dry_run, "installed", lambda: "0.0")
    shown = run("train", "addition-int8", "--set", "nodes=1", "--data", str(tmp_path), "--dry-run")
    assert shown.exit_code == 3
    assert "head 127.0.0.1 (this machine)" in shown.stdout
    assert "would stop here: " in shown.stdout
    assert has_line_naming(shown.stdout, "note:", "verl 0.0")


@pytest.mark.parametrize(("answer", "code"), [({}, 0), ({"problems": ["no NIC eth77"]}, 3), (None, 3)])
def test_a_dry_run_ends_with_3_if_a_host_would_stop(answer: dict | None, code: int, monkeypatch: pytest.MonkeyPatch):
    def ask(plan, number: int):
        if answer is None:
            raise LaunchError("ssh: connection refused")
        return facts("lo", "127.0.0.1", [0]) | answer

    monkeypatch.setattr(dry_run, "installed", lambda: None)
    monkeypatch.setattr(transport, "ask", ask)
    assert run("train", "addition-int8", "--set", "nodes=1", "--dry-run").exit_code == code


def test_a_dry_run_ends_with_2_if_verl_would_refuse(monkeypatch: pytest.MonkeyPatch):
    """verl is not asked where another one is installed, and what it says is all that is printed."""
    monkeypatch.setattr(dry_run, "installed", lambda: "0.9.1")
    monkeypatch.setattr(dry_run, "asked", lambda overrides: (["no trainer.save_frq"], None))
    shown = run("train", "addition-int8", "--set", "nodes=1", "--dry-run", "--", "trainer.save_frq=10")
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr == "verl 0.9.1: no trainer.save_frq\n"


def test_nothing_but_json_is_on_stdout_of_run_sh(tmp_path: Path):
    shown = shell("train", "addition-int8", "--set", "nodes=1", "--data", str(tmp_path), "--dry-run", "--json")
    assert shown.returncode == 3, shown.stderr
    assert json.loads(shown.stdout)["recipe"] == "addition-int8"


def test_data_writes_files_and_says_how_many_rows(tmp_path: Path):
    source = tmp_path / "downloaded" / "main"
    source.mkdir(parents=True)
    for split in ("train", "test"):
        rows = [{"question": "1 + 1?", "answer": f"{number} #### {number}"} for number in range(3)]
        (source / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = run("data", "gsm8k", "--from", str(source.parent), "--to", str(tmp_path / "made"))
    assert shown.exit_code == 0, shown.stderr
    file = tmp_path / "made" / "gsm8k" / "train.parquet"
    assert f"{file}: 3 rows" in shown.stdout and file.exists()


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["gsm9k"], "no data set 'gsm9k'", 2),
        (["addition", "--from", "/nowhere"], "/nowhere", 2),
        (["gsm8k", "--from", ""], "--from is empty", 2),
        (["gsm8k", "--to", ""], "--to is empty", 2),
        (["gsm8k", "--from", "/nowhere"], "/nowhere", 1),
        (["addition", "--to", "/dev/full"], "/dev/full/addition", 1),
    ],
)
def test_what_is_wrong_with_data_is_said(arguments: list[str], said: str, code: int):
    shown = run("data", *arguments)
    assert shown.exit_code == code
    assert has_line_naming(shown.stderr, said) and "Traceback" not in shown.stderr


@pytest.mark.parametrize(
    ("command", "option"),
    [
        *((f"train addition-int8 --set nodes=1 --dry-run{more}", "--cluster") for more in ("", " --on-this-node")),
        *(("doctor", option) for option in ("--cluster", "--recipe", "--model", "--data", "--out")),
        ("demo --arms int8", "--out"),
    ],
)
def test_an_unset_variable_of_a_shell_is_no_choice(
    command: str, option: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """It would be another machine, another run, this folder or no recipe. Nothing is begun with it, either."""
    for name in ("doctor.hosts.examine", "plan.make.make", "demo.run.run_demo"):
        monkeypatch.setattr(f"launch.{name}", lambda *_, **__: pytest.fail("was taken"))
    monkeypatch.chdir(tmp_path)
    shown = run(*command.split(), *([option] if option.startswith("-") else []), "")
    assert shown.exit_code == 2
    assert has_line_naming(shown.stderr, f"{option} is empty")


def test_doctor_wants_a_recipe_for_what_is_the_recipes():
    for option in ("--model", "--data", "--out", "--mismatch"):
        shown = run("doctor", option, "/m")
        assert shown.exit_code == 2
        assert f"{option} is for --recipe" in shown.stderr
    assert run("doctor", "--cluster", "a2-2-node").exit_code == 2


def test_recipe_show_takes_changes():
    shown = run("recipe", "show", "addition-int8", "--set", "nodes=1")
    assert shown.exit_code == 0
    assert "trainer.nnodes=1" in shown.stdout
    assert run("recipe", "show", "addition-int8", "--set", "nodes").exit_code == 2


def test_run_sh_knows_its_verbs():
    usage = shell("help").stdout
    for verb in (
        "demo",
        "train",
        "stop",
        "doctor",
        "data",
        "recipe",
        "test",
        "bench",
        "lint",
        "setup",
        "help",
    ):
        assert re.search(rf"\n  {verb}\b", usage), verb
    wrong = shell("trian")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("run.sh: no command 'trian'. Commands: ") and len(wrong.stderr.splitlines()) == 1


def test_run_sh_uses_the_interpreter_that_it_is_told():
    assert shell("train", "no-recipe").stderr.startswith("no recipe 'no-recipe'")
    wrong = shell("train", "no-recipe", PYTHON="/nowhere/python")
    assert wrong.returncode == 2
    assert "no '/nowhere/python'" in wrong.stderr


@pytest.mark.parametrize("verb", ["train", "stop", "doctor", "data", "demo", "recipe"])
def test_every_verb_has_a_help_text(verb: str):
    shown = run(verb, "--help")
    assert shown.exit_code == 0
    assert f"{verb} [OPTIONS]" in shown.stdout
