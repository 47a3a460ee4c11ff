"""--dry-run: all of the plan, in text that a shell takes and in JSON, with no secret in it."""

import json
import shlex

from plan_cases import RUN, facts, inventories_for, inventory, plan

from launch import LaunchError
from launch.cluster.transport import command_of
from launch.plan.dry_run import ask_all, described, text
from launch.recipes import load, names

SECRET = "hunter2"


def tree(made, ask) -> dict:
    return json.loads(json.dumps(described(made, ask_all(made, ask))))


def answers(made, number: int) -> dict:
    return facts(f"eth{number}", f"192.0.2.{11 + number}", range(number, number + 8))


def value_of(host: dict, name: str) -> str:
    return next(one["value"] for one in host["environment"] if one["name"] == name)


def silent(made, number: int) -> dict:
    raise LaunchError("ssh: connection refused\nport 22")


def test_what_hosts_say_of_themselves_is_in_their_environment():
    head, worker = tree(plan(), answers)["hosts"]
    for number, host in enumerate((head, worker)):
        assert (host["nic"], host["address"]) == (f"eth{number}", f"192.0.2.{11 + number}")
        assert value_of(host, "HCCL_IF_IP") == f"192.0.2.{11 + number}"
        assert value_of(host, "HCCL_SOCKET_IFNAME") == f"=eth{number}"
        assert value_of(host, "ASCEND_RT_VISIBLE_DEVICES") == "0,1,2,3,4,5,6,7"  # what the host has in its container
        assert value_of(host, "ASCEND_VISIBLE_DEVICES") == ",".join(map(str, range(number, number + 8)))
        assert host["silent"] is None and host["problems"] == []
    assert "--head" in head["ray"] and "--address=192.0.2.11:6766" in worker["ray"]
    assert f"--node-ip-address={worker['address']}" in worker["ray"]


def test_a_host_that_does_not_answer_or_lacks_devices_is_shown_with_the_reason():
    made = plan()
    first, second = (command_of(made, number) for number in (0, 1))
    chosen = facts()["chosen"] | {"devices": None, "places": None}
    for answer, told in (
        (silent, "ssh: connection refused port 22"),
        (lambda *_: {"chosen": chosen, "problems": ["no NPU"]}, "no NPU"),
    ):
        shown = tree(made, answer)
        for host, command in zip(shown["hosts"], (first, second), strict=True):
            assert [*filter(None, [host["silent"]]), *host["problems"]] == [told]
            assert (host["start"], host["ray"], host["environment"]) == (shlex.join(command), None, [])
            assert told in text(shown) and shlex.join(command) in text(shown)


def test_what_is_in_the_way_of_several_hosts_stands_once_at_the_end():
    def asked(made, number: int) -> dict:
        return facts("eth0", "192.0.2.11", range(8)) | {"problems": ["/m is missing: copy it", *["slow"] * number]}

    made = tree(plan(), asked)
    last = text(made).rpartition("\n\n")[2].splitlines()
    first, second = (host["host"] for host in made["hosts"])
    assert last[1:] == [f"  {first}, {second}: /m is missing: copy it", f"  {second}: slow"] and "2" in last[0]
    assert "--dry-run" in text(tree(plan(), answers)).splitlines()[-1]


def test_every_kind_of_recipe_has_a_dry_run():
    kinds = {(one.stack, one.backend, one.nodes, one.rollout.scheme): one for one in map(load, names())}
    assert len(kinds) > 10
    for recipe in kinds.values():
        machines = inventories_for(recipe.name)[0]
        made = plan(recipe.name, machines, out=f"{machines.shared[0]}/one" if machines.shared else None)
        seen = text(tree(made, answers))
        assert all(f"{host.address} " in seen for host in machines.hosts[: recipe.nodes])
        assert f"trainer.nnodes={recipe.nodes}" in seen and f"n_gpus_per_node={recipe.devices_per_node}" in seen
        assert f"quantization_config.scheme={recipe.rollout.scheme} " in seen or recipe.rollout.scheme == "bf16"


def test_no_secret_is_shown():
    machines = inventory(
        image="img", project=None, mounts=["/nfs:/shared"], environment={"HF_TOKEN": SECRET, "WANDB_API_KEY": SECRET}
    )
    shell = {"WANDB_API_KEY": f"{SECRET}2", "MLFLOW_TRACKING_PASSWORD": SECRET}
    made = plan(
        machines=machines, shell=shell, extra=[f"+trainer.api_key={SECRET}", f"+trainer.a={{b: [{{token: {SECRET}}}]}}"]
    )
    shown = tree(made, answers)
    assert SECRET not in json.dumps(shown) and SECRET not in text(shown)
    assert SECRET in made.nodes[0].to_json()  # it is there to be hidden
    assert "***" not in json.dumps(tree(plan(), answers))  # numbers of tokens are none
    key = next(one for one in shown["hosts"][0]["environment"] if one["name"] == "WANDB_API_KEY")
    assert (key["value"], key["source"], key["instead_of"]) == ("***", "shell", "***")
    assert "+trainer.api_key=***" in shown["job"]["entrypoint"]


def test_a_users_value_is_shown_with_what_it_replaces():
    shown = text(tree(plan(shell={"HCCL_BUFFSIZE": "512", "FLASHRL_CONFIG": "int8"}), answers))
    assert shown.count("HCCL_BUFFSIZE=512  # shell, instead of 300") == 2
    assert shown.count("FLASHRL_CONFIG=int8  # shell\n") == 2


def test_all_of_a_host_is_shown():
    made = plan(machines=inventory(image="img", mounts=["/nfs:/shared"], project=None))
    shown = text(tree(made, answers))
    containers = [f"ascend-quant-{RUN}-{number}" for number in (0, 1)]
    starts = [shlex.join(command_of(made, number)) for number in (0, 1)]
    for part in (*starts, *containers, *made.nodes[0].needs, "6766", "8260"):
        assert part in shown
