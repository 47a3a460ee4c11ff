"""The command line of launches: what is refused, in one line and with the right code, and what is handed on.

The plan of this machine is asked of a real node process; nothing is reached over a network.
"""

import json
import os
from pathlib import Path

import pytest
import yaml
from naming import has_line_naming
from plan_cases import facts
from typer.testing import CliRunner

from launch import LaunchError
from launch.cluster import transport
from launch.commands import app
from launch.plan import validate

ROOT = Path(__file__).parents[2]


def run(*arguments: str, **environment: str):
    return CliRunner(env=environment).invoke(app, arguments)


def written(folder: Path, *addresses: str, **fields) -> str:
    file = folder / "cluster.yaml"
    tree = {"stack": "cpu", "hosts": [{"address": address} for address in addresses], "shared": ["/shared"]}
    file.write_text(yaml.safe_dump(tree | fields))
    return str(file)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-recipe"], "'no-recipe'"),
        (["addition-int8"], "-- trainer.nnodes=1"),
        (["addition-int8", "--set", "node=1"], "node: "),
        (["addition-int8", "--cluster", "a2-2-node"], "a2-2-nodes"),
        (["addition-int8", "--on-this-node"], "--on-this-node: … --cluster"),
        (["addition-int8", "--json"], "--json … --dry-run"),
        *(
            (["addition-int8", "--set", "nodes=1", "--", one], said)
            for one, said in (
                ("trainer.nnodes=4", "4 hosts … trainer.nnodes=1"),
                ("~trainer.nnodes", "trainer.nnodes: is missing"),
                ("trainer={nnodes: 4}", "4 hosts … trainer.nnodes=1"),
                ("actor_rollout_ref.rollout.n=0", "actor_rollout_ref.rollout.n: 0"),
                ("++actor_rollout_ref.model.path=/m", "actor_rollout_ref.model.path … --model"),
                ("data.train_files=[/a,/b]", "data.train_files … --data"),
                ("~trainer.default_local_dir", "trainer.default_local_dir … --out"),
            )
        ),
        (["addition-int8", "--cluster", "a2-2-nodes"], "-- stack=ascend-cann9.1"),
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
    from launch.environment import network

    mine = [ip for name, ips in network.nics().items() for ip in ips if name != "lo"]
    if not mine:
        pytest.skip("this machine has no address but loopback")
    cluster = written(tmp_path, mine[0], "192.0.2.251")
    shown = run("train", "addition-int8", "--cluster", cluster, "--on-this-node")
    assert shown.exit_code == 2
    assert has_line_naming(shown.stderr, "--on-this-node: … --out")
    cluster = written(tmp_path, "192.0.2.250", "192.0.2.251", mine[0])
    shown = run("train", "addition-int8", "--cluster", cluster, "--on-this-node", "--out", "/shared/x")
    assert has_line_naming(shown.stderr, "first 2")


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node process may be slow to answer on a busy machine: five seconds are for people."""
    monkeypatch.setattr(transport, "ASK_SECONDS", 120)


def test_the_plan_of_this_machine(tmp_path: Path, patience: None, monkeypatch: pytest.MonkeyPatch):
    """The node process is a real one: it finds lo and 127.0.0.1, and that the data are missing."""
    monkeypatch.setattr(validate, "problems_of", lambda *_: ([], None))
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
    assert {"trainer.save_freq=7", "trainer.nnodes=1"} <= {*plan["job"]["entrypoint"]} and "" not in plan["job"][
        "entrypoint"
    ]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("given", ["mine.parquet", "mine.parquet,other.jsonl"])
def test_data_may_be_files(tmp_path: Path, patience: None, monkeypatch: pytest.MonkeyPatch, given: str):
    """Of a recipe of the user's, too; one file serves training and validation, which the plan says."""
    monkeypatch.setattr(validate, "problems_of", lambda *_: ([], None))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(
        "# @package _global_\ndefaults: [addition-int8, _self_]\nrecipe: {name: own}\ntrainer: {nnodes: 1}\n"
    )
    names = given.split(",")
    shown = run("train", "own.yaml", "--data", given, "--model", str(tmp_path), "--dry-run", "--json")
    plan = json.loads(shown.stdout)
    entrypoint, needs = plan["job"]["entrypoint"], plan["hosts"][0]["needs"]
    for option, name in (("train", names[0]), ("val", names[-1])):
        assert f"data.{option}_files={tmp_path / name}" in entrypoint and str(tmp_path / name) in needs
    assert any("--data TRAIN,VALIDATION" in note for note in plan["notes"]) == (len(names) == 1)
    command = run("recipe", "show", "own.yaml", "--data", given).stdout
    assert f"data.train_files={tmp_path / names[0]} " in command and "run.sh data" not in command


@pytest.mark.parametrize(
    "given", ["ok.csv", "a.parquet,ok.csv", "a.parquet,b.parquet,c.parquet", "a.parquet,", "/data,/other", "no_ending"]
)
@pytest.mark.parametrize("command", [("train", "--dry-run"), ("recipe", "show"), ("doctor", "--recipe")])
def test_data_of_another_ending_or_too_many_files_are_no_folder(tmp_path: Path, monkeypatch, given: str, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no_ending").touch()
    shown = run(*command, "addition-int8", "--data", given)
    assert shown.exit_code == 2
    assert has_line_naming(shown.stderr, f"--data {given}", ".parquet", ".json", ".jsonl", "TRAIN,VALIDATION")


@pytest.mark.parametrize("given", ["here.csv", "one,two", "/not/here", "/not/here/v1.2", "/not/here.old/", "../up"])
def test_data_may_be_a_folder_here_or_on_the_hosts(tmp_path: Path, monkeypatch, given: str):
    monkeypatch.chdir(tmp_path)
    for name in ("here.csv", "one,two"):
        (tmp_path / name).mkdir()
    shown = run("recipe", "show", "addition-int8", "--data", given)
    assert shown.exit_code == 0 and os.path.join(given, "addition/train.parquet") in shown.stdout


def test_the_last_lines_of_a_dry_run_say_what_stops_it_and_what_to_do(tmp_path: Path, patience: None, monkeypatch):
    monkeypatch.setattr(validate, "problems_of", lambda *_: ([], None))
    shown = run("train", "addition-int8", "--set", "nodes=1", "--data", str(tmp_path), "--dry-run")
    assert shown.exit_code == 3
    last = shown.stdout.rstrip().rpartition("\n\n")[2]
    for name in ("train.parquet", "test.parquet"):
        assert has_line_naming(
            last, "127.0.0.1", f"{tmp_path}/addition/{name}", f"./run.sh data addition --to {tmp_path}"
        )
    assert "trainer." not in last


@pytest.mark.parametrize(("answer", "code"), [({}, 0), ({"problems": ["no NIC eth77"]}, 3), (None, 3)])
def test_a_dry_run_ends_with_3_if_a_host_would_stop(answer: dict | None, code: int, monkeypatch: pytest.MonkeyPatch):
    def ask(plan, number: int):
        if answer is None:
            raise LaunchError("ssh: connection refused")
        return facts("lo", "127.0.0.1", [0]) | answer

    monkeypatch.setattr(validate, "problems_of", lambda *_: ([], None))
    monkeypatch.setattr(transport, "ask", ask)
    assert run("train", "addition-int8", "--set", "nodes=1", "--dry-run").exit_code == code


def test_a_dry_run_ends_with_2_if_verl_would_refuse(monkeypatch: pytest.MonkeyPatch):
    """What verl says is all that is printed."""
    monkeypatch.setattr(validate, "asked", lambda overrides: (["no trainer.save_frq"], None))
    shown = run("train", "addition-int8", "--set", "nodes=1", "--dry-run", "--", "trainer.save_frq=10")
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr == "verl 0.9.1: no trainer.save_frq\n"


def test_doctor_wants_a_recipe_for_what_is_the_recipes():
    for option in ("--model", "--data", "--out"):
        shown = run("doctor", option, "/m")
        assert shown.exit_code == 2
        assert has_line_naming(shown.stderr, option, "--recipe")
    assert run("doctor", "--cluster", "a2-2-node").exit_code == 2
