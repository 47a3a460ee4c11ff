"""Two A2 nodes in docs/cluster.md: a dry run sets what the table says, the image has the stack's verl, pods start runs.

The job's script is run by a real shell, with Volcano's variable and a stand-in for run.sh.
"""

import json
import re
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from bake_file import IMAGES
from command_cases import commands, understood
from plan_cases import TWO_A2, facts, plan
from test_first_day import ROOT, blocks, inventories

from launch import recipes
from launch.cluster.inventory import load
from launch.plan.dry_run import ask_all, described
from launch.plan.job import places
from launch.recipes.stacks import pins

PAGES = [(ROOT / "docs" / name).read_text() for name in ("cluster.md", "cluster.zh.md")]
HOSTS = "two-a2-train-0.two-a2,two-a2-train-1.two-a2"  # as Volcano's svc plugin names the pods


@pytest.mark.parametrize("page", PAGES, ids=["en", "zh"])
def test_a_dry_run_of_the_pages_inventory_sets_what_its_table_says(page: str, tmp_path: Path):
    words = next(one for one in commands(page) if {"--dry-run", "two.yaml"} <= {*one})
    given = dict(pairwise(words))
    machines = load(str(inventories(tmp_path)[given["--cluster"]]))
    made = plan(given["train"], machines, data=given["--data"], model=given["--model"])
    answers = ask_all(made, lambda _, number: facts("bond0", f"192.0.2.{11 + number}"))
    first, second = json.loads(json.dumps(described(made, answers)))["hosts"]
    found = {one["name"]: one["value"] for one in first["environment"]}
    told = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|$", page, re.MULTILINE))
    assert len(told) >= 10 and told.items() <= found.items()
    assert "HCCL_OP_EXPANSION_MODE" not in found
    assert {"name": "HCCL_IF_IP", "value": "192.0.2.12"}.items() <= next(
        one.items() for one in second["environment"] if one["name"] == "HCCL_IF_IP"
    )


@pytest.mark.parametrize("page", PAGES, ids=["en", "zh"])
def test_on_verl_s_image_come_the_stack_s_verl_and_queue_where_the_inventory_looks(page: str, tmp_path: Path):
    machines = load(str(inventories(tmp_path)["two.yaml"]))
    lock = (ROOT / f"docker/locks/{machines.stack}.in").read_text()
    named = re.findall(r"\w+==[\d.]+", page)
    assert (
        len(named) == 2
        and set(named) <= set(lock.split())
        and f"verl=={pins(machines.stack).packages['verl']}" in named
    )
    assert f"--tag {machines.image} " in page and f"COPY . {machines.project}'" in page


def volcano() -> tuple[dict, dict]:
    """The job's task, and its pod."""
    (text,) = [block for block in blocks(PAGES[0], "yaml") if "kind: Job" in block]
    assert text in blocks(PAGES[1], "yaml")
    (task,) = yaml.safe_load(text)["spec"]["tasks"]
    return task, task["template"]["spec"]


def test_a_pod_has_its_hosts_network_npus_and_driver():
    task, pod = volcano()
    (container,) = pod["containers"]
    recipe, npus = recipes.load(TWO_A2), "huawei.com/Ascend910"
    assert (task["replicas"], container["resources"]["limits"][npus]) == (recipe.nodes, recipe.devices_per_node)
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert pod["hostNetwork"] is True and pod["dnsPolicy"] == "ClusterFirstWithHostNet"
    (visible,) = container["env"]
    assert visible["name"] == "ASCEND_VISIBLE_DEVICES"
    assert visible["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.annotations['{npus}']"
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    assert container["image"].rpartition(":")[2] in IMAGES.values()


def test_a_pods_script_makes_the_inventory_of_all_and_starts_its_part(tmp_path: Path):
    task, pod = volcano()
    (container,) = pod["containers"]
    *shell, script = container["args"]
    stand_in, cluster = tmp_path / "run.sh", tmp_path / "pods.yaml"
    for tool in (stand_in, tmp_path / "getent"):
        tool.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        tool.chmod(0o755)
    script = script.replace("/opt/ascend-quant/run.sh", str(stand_in)).replace("/tmp/pods.yaml", str(cluster))
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", f"VC_{task['name'].upper()}_HOSTS": HOSTS}
    done = subprocess.run([*shell, script], env=variables, capture_output=True, text=True, check=True, timeout=60)
    assert [word for word in done.stderr.split() if word != "hosts"] == HOSTS.split(","), "each is waited for"
    said = done.stdout.split()
    understood(said)
    given = dict(pairwise(said))
    machines, recipe = load(given["--cluster"]), recipes.load(said[1])
    assert [host.address for host in machines.hosts] == HOSTS.split(",") and len(machines.hosts) == recipe.nodes
    assert "--on-this-node" in said and given["--out"].startswith(machines.shared[0])
    plan(said[1], machines, out=given["--out"], data=given["--data"], model=given["--model"])
    assert places(recipe, machines, "r", False, data=given["--data"]).data == given["--data"]
