"""Several hosts: two doctors on this machine, on loopback's IPv4 and IPv6 address, over pipes in place of ssh."""

import json
import random
import re
import shlex
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from naming import has_line_naming
from rich.console import Console

from launch.doctor import Finding, HostReport, Report, examine, show
from launch.doctor.checks.hosts import Meeting, clock, traits
from launch.doctor.checks.hosts import reach as reach_check
from launch.doctor.checks.network import reach
from launch.doctor.hosts import Channel, HostSilent, examine_hosts, ports_of
from launch.doctor.requirements import wanted_here, wanted_of
from launch.inventory.fields import Inventory
from launch.recipes import load, paths_of

PROJECT = Path(__file__).parents[2]
DOCTOR = [sys.executable, "-m", "launch.doctor"]
AHEAD = "import time; now = time.time; time.time = lambda: now() + 60; from launch.doctor.__main__ import main; main()"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, of those that the kernel gives to nobody."""
    free = []
    while len(free) < count:
        port = random.randrange(10000, 20000)
        if port not in free and all(
            reach(address, port, 5) == "Connection refused" for address in ("127.0.0.1", "::1")
        ):
            free.append(port)
    return free


@pytest.fixture
def inventory() -> Inventory:
    hosts = [{"address": "127.0.0.1", "environment": {"GLOO_SOCKET_IFNAME": "lo"}}, {"address": "::1", "nic": "eth7"}]
    head, dashboard, worker = free_ports(3)
    ports = {"ray": head, "dashboard": dashboard, "workers": f"{worker}-65535"}
    return Inventory.model_validate({"stack": "cpu", "hosts": hosts, "ports": ports})


def opened(commands: dict[str, list[str]]):
    """Channels by these commands, of which stderr is the reason."""

    def reason(code: int, stderr: str) -> str:
        return f"ended with {code}: {stderr.strip()}"

    return lambda inventory, at: Channel(commands.get(inventory.hosts[at].address, DOCTOR), reason)


def findings(report: Report, check: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.check == check]


def test_two_hosts_that_answer(inventory: Inventory, monkeypatch):
    monkeypatch.chdir(PROJECT)
    heard = []
    report = examine_hosts(inventory, None, None, heard.append, opened({}))
    assert heard[0] == "examining 2 hosts"
    assert [host.host for host in report.hosts] == ["127.0.0.1", "::1"]
    answered, alike, clocks, reached = report.together
    assert {finding.level for finding in report.together} == {"ok"}
    assert "2 hosts" in answered.what and "all hosts" in alike.what
    assert re.fullmatch(r"within \d+\.\d\d s", clocks.what)
    assert "all 6 connections" in reached.what  # to the head: ray, dashboard, workers, any; to the other: workers, any
    levels = [{finding.check: finding.level for finding in host.findings} for host in report.hosts]
    assert (levels[0]["network.nic"], levels[1]["network.nic"]) == ("ok", "error")
    assert "no NIC eth7" in findings(report, "network.nic")[1].what
    assert levels[0]["variables.nic"] == "ok" and "variables.nic" not in levels[1]
    assert report.exit_code == 1 and json.loads(report.as_json())["hosts"][1]["host"] == "::1"


def test_a_host_that_does_not_answer_and_a_clock_ahead(inventory: Inventory, monkeypatch):
    monkeypatch.chdir(PROJECT)
    refused = ["bash", "-c", "echo 'ssh: connect to host x port 22: Connection refused' >&2; exit 255"]
    report = examine_hosts(inventory, None, None, lambda line: None, opened({"::1": refused}))
    (silent,) = findings(report, "hosts.answer")
    assert silent.level == "error" and has_line_naming(silent.what, "::1:", "255: ssh: connect to host x port 22")
    assert [host.host for host in report.hosts] == ["127.0.0.1"]
    ahead = [sys.executable, "-c", AHEAD]
    report = examine_hosts(inventory, None, None, lambda line: None, opened({"::1": ahead}))
    (skew,) = findings(report, "hosts.clock")
    assert skew.level == "error" and "::1 is 60.0 s ahead of 127.0.0.1" in skew.what


@pytest.mark.parametrize("line", ["Welcome to node7!", "{", "[]", '{"clock": 1, "clock": 2}'])
def test_what_is_no_answer_is_the_host_s_finding(line: str):
    channel = Channel(["bash", "-c", 'read; echo "$0"', line], lambda code, stderr: "ended")
    with pytest.raises(HostSilent, match=re.escape(line)):
        channel.ask("clock", True, 60)
    channel.close()


def test_a_doctor_ends_with_its_input():
    done = subprocess.run(DOCTOR, input='{"clock": true}\n', capture_output=True, text=True, cwd=PROJECT, timeout=60)
    assert (done.returncode, done.stderr) == (0, "") and json.loads(done.stdout)["clock"] > 1e9


def test_a_host_that_hangs_is_left_behind():
    channel = Channel(["sleep", "600"], lambda code, stderr: "ended")
    with pytest.raises(HostSilent, match=r"no answer within 0\.1 s"):
        channel.ask("clock", True, 0.1)
    channel.child.kill()
    channel.close()
    assert channel.child.returncode is not None


def test_ports_that_hosts_must_reach(inventory: Inventory):
    npu = inventory.model_copy(update={"stack": "ascend-cann9.1"})
    ports = inventory.ports
    workers = int(ports.workers.split("-")[0])
    assert ports_of(wanted_of(npu, 0, None, None)) == [ports.ray, ports.dashboard, workers, 60000, 0]
    assert ports_of(wanted_of(npu, 1, None, None)) == [workers, 60000, 0]
    assert ports_of(wanted_of(inventory, 1, None, None)) == [workers, 0]


def test_versions_that_differ_are_named_by_host():
    reports = [HostReport(host, [], {"torch": torch, "driver": host}) for host, torch in zip("abc", "121", strict=True)]
    said = {finding.what: finding.level for finding in traits(reports, Meeting())}
    assert said == {"torch: 1 on a, c; 2 on b": "error", "driver: a on a; b on b; c on c": "warning"}


def test_a_package_that_one_host_has_not():
    reports = [HostReport("a", [], {"ray": "2"}), HostReport("b", [], {})]
    (finding,) = traits(reports, Meeting())
    assert (finding.level, finding.what) == ("error", "ray: 2 on a; none on b")


def test_a_slow_answer_is_no_skew():
    reports = [HostReport("a", []), HostReport("b", [])]
    assert clock(reports, Meeting(clocks={"a": (0, 0.1), "b": (6, 3)}))[0].level == "ok"
    assert clock(reports, Meeting(clocks={"a": (9, 0.1), "b": (1, 1)}))[0].what == "b is 8.0 s behind a"


def test_who_does_not_reach_whom():
    (finding,) = reach_check([], Meeting(tried=6, unreached=(("a", "b", 6766, "no answer within 3 s"),)))
    assert re.search(r"\ba\b.* b .*port 6766: .*3 s", finding.what) and has_line_naming(finding.fix, "port 6766", "b")


def test_what_a_recipe_wants_of_a_host(inventory: Inventory):
    recipe = load("qwen2.5-7b-int8-gsm8k-a2")
    one = wanted_of(inventory, 1, recipe, paths_of(recipe, "/m", "/d", "/o"))
    assert (one.model, one.out, one.head, one.nic) == ("/m", "/o", False, "eth7")
    assert (one.count, one.scheme, one.device_gib) == (8, "int8", recipe.memory.device)
    assert all(file.startswith("/d/") for file in one.data) and len(one.data) == 2
    alone = wanted_here(recipe, None)
    assert (alone.stack, alone.hosts, alone.address, alone.model) == (recipe.stack, 1, None, recipe.model.hub)
    assert wanted_here(None, None).count is None


def test_whether_the_engine_sleeps():
    recipe = load("qwen2.5-7b-int8-gsm8k-a2")
    assert wanted_here(recipe, None).sleeps  # verl's own default
    for setting in ("free_cache_engine", "enable_sleep_mode"):
        tree = {"actor_rollout_ref": {"rollout": {setting: False}}}
        assert not wanted_here(recipe.model_copy(update={"verl": tree}), None).sleeps


def test_this_machine_and_the_table(monkeypatch):
    report = examine()
    assert {finding.check for finding in report.findings} >= {"kernels.product", "system.shm", "network.ports"}
    (product,) = findings(report, "kernels.product")
    assert (product.level, product.what) == ("ok", "int8 on cpu: torch._int_mm")
    assert findings(report, "versions.packages")[0].level == "ok"
    assert report.exit_code == ("error" in {finding.level for finding in report.findings})


def shown(report: Report) -> str:
    console = Console(file=StringIO(), width=100)
    show(report, console)
    return console.file.getvalue()


def test_hosts_stand_side_by_side_and_fixes_are_said_once():
    full = Finding("error", "system.shm", "0.1 GiB free", "docker run --shm-size=64g")
    fine = Finding("ok", "system.shm", "60 GiB free")
    text = shown(Report([HostReport("a", [full]), HostReport("b", [fine]), HostReport("c", [full])]))
    (row,) = [line for line in text.splitlines() if line.count("GiB free") == 3]
    assert row.index("error 0.1") < row.index("ok 60") < row.rindex("error 0.1")
    assert text.count("fix: docker run --shm-size=64g") == 1 and has_line_naming(text, "system.shm", "a, c:")
    assert has_line_naming(text, "2 errors", "0 warnings", "1 ok:")


def test_what_a_tool_prints_controls_no_terminal():
    name = "A\x1b[2J\x07\x9b GPU\nof two lines"
    findings = [Finding("error", "device.name", name, f"ask {name}"), Finding("ok", "device.name", name)]
    text = shown(Report([HostReport("a", findings)], [Finding("warning", "hosts", name, name)]))
    assert not set(text) & {"\x1b", "\x07", "\x9b"} and text.count("\\x1b[2J\\x07\\x9b") >= 4


def test_a_long_command_is_not_shown_by_halves():
    command = shlex.join(["rm", *(f"/dev/shm/psm_{number:08}" for number in range(200))])
    text = shown(Report([HostReport("a", [Finding("warning", "leftovers.segments", "200 files", command)])]))
    assert has_line_naming(text, "201 words", "doctor --json") and "psm_00000199" not in text
    assert has_line_naming(text, "0 errors", "1 warning", "0 ok:")
