"""How a host is reached: the command of ssh, a part's lines both ways, and why a host could not be reached."""

import queue

import pytest
from cluster_cases import node_plan, plan_of

from launch import LaunchError
from launch.cluster import transport
from launch.cluster.inventory import Inventory
from launch.cluster.transport import may_pass, reason

UNKNOWN, CHANGED = "Host key verification failed.", "REMOTE HOST IDENTIFICATION HAS CHANGED"


def test_a_host_tells_its_facts_or_why_it_does_not(monkeypatch):
    plan = plan_of(node_plan())
    assert transport.ask(plan, 0)["chosen"]["devices"] == [0]
    for line, why in (("echo oops >&2; exit 7", "code 7: oops"), ("echo hello", "'hello")):
        monkeypatch.setattr(transport, "command_of", lambda *_, line=line: ["bash", "-c", line])
        with pytest.raises(LaunchError, match=f"^127.0.0.1: .*{why}"):
            transport.ask(plan, 0)


def test_a_channel_carries_lines_both_ways_and_closes_with_a_code():
    line = 'echo begins; read order; echo "$order"; echo oops >&2; read order || exit 7'
    events: queue.Queue = queue.Queue()
    channel = transport.Channel(["bash", "-c", line], 4, events)
    channel.send("an order")
    got = [events.get(timeout=30) for _ in range(3)]
    channel.close()
    got.append(events.get(timeout=30))
    expected = {transport.Event(4, one, is_output=True) for one in ("begins", "an order")}
    assert set(got) == {*expected, transport.Event(4, "oops"), transport.Event(4, code=7)}
    assert got[-1].code == 7 and "oops" in channel.errors


def test_nothing_is_ever_asked_and_the_inventorys_login_is_used():
    inventory = Inventory.model_validate(
        {"stack": "cpu", "ssh": {"user": "me"}, "hosts": [{"address": "2001:db8::1", "ssh": {"port": 2222}}]}
    )
    command = transport.command(inventory, 0, "echo hello")
    assert command[0] == "ssh" and "BatchMode=yes" in command
    assert command[-3:] == ["--", "2001:db8::1", "echo hello"]
    assert command[command.index("-l") + 1] == "me" and command[command.index("-p") + 1] == "2222"
    assert transport.command(inventory, 0, "echo hello", local=True) == ["bash", "-c", "echo hello"]


@pytest.mark.parametrize(
    ("code", "errors", "said", "passes"),
    [
        (
            255,
            "ssh: connect to host h port 22: Connection timed out",
            "ssh: connect to host h port 22: Connection",
            True,
        ),
        (255, "Connection to h closed by remote host.", "ssh: Connection to h closed", True),
        (255, "Timeout, server h not responding.", "ssh: Timeout, server h not responding", False),
        (255, "me@h: Permission denied (publickey).", "me@h: Permission denied", False),
        (255, f"No ED25519 host key is known for h.\n{UNKNOWN}", "`ssh h`", False),
        (
            255,
            f"@@@@@@\n@   WARNING: {CHANGED}!   @\n@@@@@@\n{UNKNOWN}",
            "`ssh-keygen -R h`",
            False,
        ),
        (1, "docker: Cannot connect to the Docker daemon at unix:///run/docker.sock.", "code 1: docker: Cannot", False),
        (1, "Traceback ..\nModuleNotFoundError: No module named 'psutil'", "a Python package is missing", False),
        (1, "bash: line 1: cd: /nowhere: No such file or directory", "check `project`", False),
    ],
)
def test_reasons_in_one_line(code, errors, said, passes):
    line = reason("h", code, errors)
    assert said in line and "\n" not in line
    assert may_pass(code, errors) == passes
