"""Several hosts: two doctors on this machine, on loopback's IPv4 and IPv6 address, over pipes in place of ssh."""

import json
import socket
import sys
from io import StringIO
from pathlib import Path

import pytest
from naming import has_line_naming
from rich.console import Console

from launch.cluster.inventory import Inventory
from launch.doctor import hosts, network
from launch.doctor.checking import Finding, HostReport, Report, show
from launch.doctor.facts import Facts
from launch.doctor.hosts import REQUEST, asked, examine, reaching, traits
from launch.plan import Wanted
from launch.plan.wanted import wanted_here, wanted_of
from launch.recipes import load, paths_of

PROJECT = Path(__file__).parents[2]
DOCTOR = [sys.executable, "-m", "launch", "node"]


@pytest.fixture
def inventory(monkeypatch: pytest.MonkeyPatch) -> Inventory:
    monkeypatch.chdir(PROJECT)
    two = [{"address": "127.0.0.1", "environment": {"GLOO_SOCKET_IFNAME": "lo"}}, {"address": "::1", "nic": "eth7"}]
    return Inventory.model_validate({"stack": "cpu", "hosts": two})


def test_two_hosts_that_answer(inventory: Inventory, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hosts, "reaching", lambda *_: DOCTOR)
    report = examine(inventory)
    assert [host.host for host in report.hosts] == ["127.0.0.1", "::1"]
    assert [(one.check, one.level) for one in report.together] == [("hosts.answer", "ok"), ("hosts.traits", "ok")]
    first, second = ({one.check: one for one in host.findings} for host in report.hosts)
    assert {one["hosts.reach"].level for one in (first, second)} == {"ok"}
    assert (first["network.address"].level, second["network.address"].level) == ("ok", "error")
    assert "eth7" in second["network.address"].what
    assert report.exit_code == 1 and json.loads(report.as_json())["hosts"][1]["host"] == "::1"


def test_a_host_that_does_not_answer(inventory: Inventory, monkeypatch: pytest.MonkeyPatch):
    refused = ["bash", "-c", "echo 'ssh: connect to host x port 22: Connection refused' >&2; exit 255"]
    monkeypatch.setattr(hosts, "reaching", lambda _, at: refused if at else DOCTOR)
    report = examine(inventory)
    silent, _ = report.together
    assert (silent.check, silent.level) == ("hosts.answer", "error")
    assert has_line_naming(silent.what, "::1:", "ssh: connect", "refused")
    assert [host.host for host in report.hosts] == ["127.0.0.1"]


@pytest.mark.parametrize("line", ["Welcome to node7!", "{", "[]"])
def test_what_is_no_answer_is_why_a_host_is_silent(line: str):
    said = asked(["bash", "-c", 'cat > /dev/null; echo "$0"', line], Wanted())
    assert isinstance(said, str) and line in said


def test_a_host_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hosts, "EXAMINE_SECONDS", 0.1)
    assert "0.1 s" in asked(["sleep", "600"], Wanted())


def test_this_machine_is_asked_by_its_shell(inventory: Inventory):
    assert reaching(inventory, 0)[:2] == ["bash", "-c"] and "-m launch node" in reaching(inventory, 0)[2]


def test_hosts_try_to_reach_each_other(inventory: Inventory):
    npu = inventory.model_copy(update={"stack": "ascend-cann9.1"})
    assert wanted_of(npu, 0, None, None).targets == [("::1", 50000), ("::1", 20000), ("::1", 60000)]
    ray = [("127.0.0.1", 6766), ("127.0.0.1", 8260)]
    assert wanted_of(inventory, 1, None, None).targets == [("127.0.0.1", 50000), ("127.0.0.1", 20000), *ray]


def test_a_port_without_a_listener_is_reached_and_a_silent_one_is_not(monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as full:  # it never accepts: when its queue is full, connections are left without an answer
        full.bind(("127.0.0.1", 0))
        port = full.getsockname()[1]
        facts = Facts(Wanted(targets=[("127.0.0.1", port)]))
        assert [*network.reach(facts)] == []  # nobody listens
        full.listen(0)
        assert [*network.reach(facts)] == []
        monkeypatch.setattr(network, "CONNECT_SECONDS", 0.2)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        (finding,) = network.reach(facts)
        assert finding.level == "error" and has_line_naming(finding.what, "127.0.0.1", f"port {port}", "0.2 s")
        assert has_line_naming(finding.fix, "on 127.0.0.1")
        for one in waiting:
            one.close()


def test_versions_that_differ_are_named_by_host():
    reports = [HostReport(host, [], {"torch": torch, "driver": host}) for host, torch in zip("abc", "121", strict=True)]
    said = {finding.what: finding.level for finding in traits(reports, {})}
    assert said == {"torch: 1 on a, c; 2 on b": "error", "driver: a on a; b on b; c on c": "warning"}
    (finding,) = traits([HostReport("a", [], {"ray": "2"}), HostReport("b", [], {})], {})
    assert (finding.level, finding.what) == ("error", "ray: 2 on a; none on b")


def test_what_a_recipe_wants_of_a_host(inventory: Inventory):
    recipe = load("qwen2.5-7b-int8-gsm8k-a2")
    paths = paths_of(recipe, "/m", "/d", "/o")
    one = wanted_of(inventory, 1, recipe, paths)
    assert (one.model, one.out, one.role, one.nic) == ("/m", "/o", "worker", "eth7")
    assert (one.devices, one.device_gib, one.saving) == (8, recipe.memory.device, None)
    model, *files = one.needs
    assert model == "/m" and len(files) == 2 and all(file.startswith("/d/") for file in files)
    assert one.imports
    assert wanted_of(inventory, 0, recipe, paths).saving.every == recipe.setting("trainer.save_freq")
    assert REQUEST.validate_json(REQUEST.dump_json(one)) == one
    alone = wanted_here(recipe, paths)
    assert (alone.stack, alone.hosts, alone.address, alone.model) == (recipe.stack, 1, None, "/m")
    assert alone.sleeps  # verl's own default
    for setting in ("free_cache_engine", "enable_sleep_mode"):
        tree = {"actor_rollout_ref": {"rollout": {setting: False}}}
        assert not wanted_here(recipe.model_copy(update={"verl": tree}), paths).sleeps


def test_a_problem_is_printed_once_with_its_hosts_and_its_fix():
    full = Finding("error", "machine.shm", "0.1 GiB free", "docker run --shm-size=64g")
    fine = Finding("ok", "machine.shm", "no problem found")
    console = Console(file=StringIO(), width=100)
    reports = [HostReport("a", [full], {"torch": "2.9"}), HostReport("b", [fine], {}), HostReport("c", [full], {})]
    show(Report(reports), console)
    first, _, _, error, fix, _, summary = console.file.getvalue().splitlines()
    assert has_line_naming(first, "a:", "torch 2.9")
    assert has_line_naming(error, "error", "machine.shm", "a, c:", "0.1")
    assert has_line_naming(fix, "--shm-size=64g")
    assert has_line_naming(summary, "errors: 2", "warnings: 0", "ok: 1")
