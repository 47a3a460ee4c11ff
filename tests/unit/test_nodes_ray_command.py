"""The commands that start Ray: accepted by Ray's own parser, every port chosen, and none twice."""

import json
from dataclasses import replace

import pytest
from cluster_cases import node_plan

from launch.network import Wire
from launch.nodes import ports
from launch.nodes.ray_node import joined, start_command
from launch.private import run_folder

WIRE = Wire("eth0", "192.0.2.11", "ipv4")


def parsed(command: list[str]) -> dict:
    """What Ray's command line makes of it; an option that it does not know is an error."""
    start = pytest.importorskip("ray.scripts.scripts").start
    assert command[:2] == ["ray", "start"]
    return start.make_context("start", list(command[2:])).params


@pytest.mark.parametrize("role", ["head", "worker"])
def test_every_port_of_a_host_is_chosen_and_checked(role):
    plan = node_plan(role=role, head="192.0.2.10", address="192.0.2.11", members=["192.0.2.10", "192.0.2.11"])
    options = parsed(start_command(plan, WIRE, 1))
    daemons = [name.replace("-", "_") for name in ports.DAEMONS]
    if role == "worker":
        daemons.remove("ray_client_server_port")
        assert options["address"] == "192.0.2.10:21000"
    chosen = [options[name] for name in daemons]
    if role == "head":
        chosen += [int(options["port"]), int(options["dashboard_port"])]
    assert all(chosen)
    assert sorted(chosen) == sorted(ports.needed(role, plan.ports))
    chosen += [int(port) for port in ports.metrics_ports(plan.ports).values()]
    assert len(set(chosen)) == len(chosen)
    workers = range(int(options["min_worker_port"]), int(options["max_worker_port"]) + 1)
    assert len(workers) > 50 and not set(chosen) & set(workers)


def test_head_and_worker_differ_where_they_must():
    plan = node_plan()
    head = parsed(start_command(plan, WIRE, 1))
    worker = parsed(start_command(replace(plan, role="worker"), WIRE, 1))
    assert (head["head"], worker["head"]) == (True, False)
    assert head["dashboard_host"] == "192.0.2.11"
    for options in (head, worker):
        assert options["block"] and options["temp_dir"] == str(run_folder(plan.run))
        assert options["node_ip_address"] == "192.0.2.11"


def test_ray_counts_the_devices_by_the_names_that_verl_asks_for():
    npu = parsed(start_command(node_plan(stack="ascend-cann9.1"), WIRE, 8))
    gpu = parsed(start_command(node_plan(stack="cuda13"), WIRE, 4))
    cpu = parsed(start_command(node_plan(), WIRE, 2))
    assert json.loads(npu["resources"]) == {"NPU": 8} and npu["num_gpus"] is None
    assert gpu["num_gpus"] == 4 and gpu["num_cpus"] is None
    assert cpu["num_gpus"] == 2 and cpu["num_cpus"] >= 16


def test_an_ipv6_head_is_written_in_brackets():
    plan = node_plan(role="worker", head="2001:db8::1")
    assert parsed(start_command(plan, Wire("eth0", "2001:db8::2", "ipv6"), 1))["address"] == "[2001:db8::1]:21000"
    assert joined("node1", 1) == "node1:1"
