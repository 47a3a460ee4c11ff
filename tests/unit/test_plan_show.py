"""--dry-run: all of the plan, in text that a shell takes and in JSON, with no secret in it."""

import json
import shlex
import subprocess
import threading

import pytest
from plan_cases import RUN, facts, inventories_for, inventory, plan

from launch.errors import LaunchError
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
        assert value_of(host, "ASCEND_RT_VISIBLE_DEVICES") == ",".join(map(str, range(number, number + 8)))
        assert host["silent"] is None and host["problems"] == []
    assert "--head" in head["ray"] and "--address=192.0.2.11:6766" in worker["ray"]
    assert f"--node-ip-address={worker['address']}" in worker["ray"]


def test_a_host_that_does_not_answer_is_shown_with_words_and_the_reason():
    hosts = [{"address": "node1", "nic": "auto"}, {"address": "2001:db8::2", "nic": "bond0", "devices": list(range(8))}]
    first, second = tree(plan(machines=inventory(hosts=hosts)), silent)["hosts"]
    assert first["silent"] == "ssh: connection refused port 22"
    assert value_of(first, "GLOO_SOCKET_IFNAME") == "<NIC that carries node1>"
    assert value_of(first, "HCCL_IF_IP") == "<address of node1>"
    assert "8" in value_of(first, "ASCEND_RT_VISIBLE_DEVICES")
    assert value_of(second, "HCCL_SOCKET_IFNAME") == "=bond0"
    assert value_of(second, "HCCL_SOCKET_FAMILY") == "AF_INET6"
    assert value_of(second, "ASCEND_RT_VISIBLE_DEVICES") == "0,1,2,3,4,5,6,7"


def test_every_recipe_has_a_dry_run():
    for name in names():
        recipe, machines = load(name), inventories_for(name)[0]
        made = plan(recipe=name, machines=machines, out=f"{machines.shared[0]}/one" if machines.shared else None)
        seen = text(tree(made, silent))
        assert all(f"{host.address} " in seen for host in machines.hosts[: recipe.nodes])
        assert f"trainer.nnodes={recipe.nodes} " in seen and f"n_gpus_per_node={recipe.devices_per_node} " in seen
        assert f"quantization_config.scheme={recipe.rollout.scheme} " in seen or recipe.rollout.scheme == "bf16"


def test_what_would_stop_a_host_is_shown():
    def ask(made, number: int) -> dict:
        return {
            "chosen": {"wire": None, "devices": None},
            "problems": ["no NIC here carries 192.0.2.11", "/x is missing"],
        }

    shown = text(tree(plan(), ask))
    assert shown.count("no NIC here carries 192.0.2.11") == 2
    assert shown.count("/x is missing") == 2


def test_hosts_are_asked_at_the_same_time():
    both = threading.Barrier(2, timeout=20)  # broken unless two are inside at once

    def ask(made, number: int) -> dict:
        both.wait()
        return answers(made, number)

    assert len(tree(plan(), ask)["hosts"]) == 2


def test_no_secret_is_shown():
    machines = inventory(
        image="img", project=None, mounts=["/nfs:/shared"], environment={"HF_TOKEN": SECRET, "WANDB_API_KEY": SECRET}
    )
    shell = {"WANDB_API_KEY": f"{SECRET}2", "MLFLOW_TRACKING_PASSWORD": SECRET}
    made = plan(machines=machines, shell=shell, extra=[f"+trainer.api_key={SECRET}", f"++trainer.a.token={SECRET}"])
    shown = tree(made, silent)
    assert SECRET not in json.dumps(shown) and SECRET not in text(shown)
    assert SECRET in made.nodes[0].to_json()  # it is there to be hidden
    key = next(one for one in shown["hosts"][0]["environment"] if one["name"] == "WANDB_API_KEY")
    assert (key["value"], key["source"], key["instead_of"]) == ("***", "shell", "***")
    assert "+trainer.api_key=***" in shown["job"]["entrypoint"]


@pytest.mark.parametrize(
    "extra",
    [
        f"+ray_kwargs.ray_init.runtime_env.env_vars={{HF_TOKEN: {SECRET}}}",
        f"+ray_kwargs.ray_init.runtime_env.env_vars.HF_TOKEN_2={SECRET}",
        f"+ray_kwargs.ray_init.runtime_env.env_vars.WANDB_API_KEY_PROD='{SECRET} {SECRET}'",
        f"+trainer.login={{a: [{{password: {SECRET}}}]}}",
    ],
)
def test_no_secret_of_an_override_is_shown(extra: str):
    shown = tree(plan(extra=[extra]), silent)
    assert SECRET not in json.dumps(shown) and SECRET not in text(shown)


def test_numbers_of_tokens_are_no_secrets():
    assert "***" not in json.dumps(tree(plan(), silent))


def test_a_users_value_is_shown_with_what_it_replaces():
    shown = text(tree(plan(shell={"HCCL_BUFFSIZE": "512", "FLASHRL_CONFIG": "int8"}), answers))
    assert shown.count("HCCL_BUFFSIZE=512  # shell, instead of 300") == 2
    assert shown.count("FLASHRL_CONFIG=int8  # shell\n") == 2


def test_a_shell_takes_the_jobs_command():
    made = plan(extra=["+a.b='c d'"])
    _, python, command = text(tree(made, silent)).partition("  python -m")
    script = f"python() {{ printf '%s\\0' \"$@\"; }}\n{python}{command}"
    said = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True).stdout
    assert said.removesuffix("\0").split("\0") == made.nodes[0].job.entrypoint


def test_a_model_that_no_system_could_have_is_a_name():
    assert "x" * 300 in text(tree(plan(model="x" * 300), silent))


@pytest.mark.parametrize("image", [None, "img"])
def test_all_of_a_host_is_shown(image: str | None):
    mounts = {"mounts": ["/nfs:/shared"], "project": None} if image else {}
    made = plan(machines=inventory(image=image, **mounts))
    shown = text(tree(made, silent))
    for line in made.start:
        assert shlex.quote(line) in shown
    assert ("type=bind,source=/nfs,target=/shared" in shown) is (image is not None)
    assert (f"ascend-quant-{RUN}-0" in shown) is (image is not None)
    for path in made.nodes[0].needs:
        assert f"{path} exists" in shown
    for port in (6766, 8260):
        assert str(port) in shown
