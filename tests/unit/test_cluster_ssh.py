"""Reaching a host over real ssh: an sshd of our own on the loopback, keys and known hosts of our own."""

import getpass
import os
import queue
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from cluster_cases import node_plan, plan_of
from naming import has_line_naming

from launch import LaunchError
from launch.cluster import transport
from launch.cluster.inventory import Host, Inventory, Ssh
from launch.cluster.transport import may_pass, reason

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
needs_sshd = pytest.mark.skipif(SSHD is None, reason="needs sshd: apt-get install openssh-server")


def new_key(file: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file], check=True)
    return file


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """An sshd that accepts one key: (port, that key, the host's public key)."""
    folder = tmp_path_factory.mktemp("sshd")
    host_key, user_key = new_key(folder / "host"), new_key(folder / "user")
    shutil.copy(f"{user_key}.pub", folder / "authorized")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {
        "HostKey": host_key,
        "AuthorizedKeysFile": folder / "authorized",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
    }
    Path("/run/sshd").mkdir(exist_ok=True)
    command = [SSHD, "-D", "-e", "-f", "/dev/null", "-p", str(port), "-o", "ListenAddress=127.0.0.1"]
    command += [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while socket.socket().connect_ex(("127.0.0.1", port)):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    yield port, user_key, Path(f"{host_key}.pub").read_text()
    process.terminate()
    process.wait()


@pytest.fixture
def client(tmp_path, monkeypatch):
    """client(known): the real ssh with a file of known hosts of our own; ssh does not look at HOME for it."""
    real = shutil.which("ssh")

    def make(known: str) -> None:
        (tmp_path / "known").write_text(known)
        wrapper = tmp_path / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec {real} -F /dev/null -o UserKnownHostsFile={tmp_path / "known"} "$@"\n')
        wrapper.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return make


def plan_over_ssh(port: int, key: Path, address: str = "127.0.0.1"):
    """This machine, reached as another would be."""
    plan = plan_of(node_plan())
    host = Host(address=address, ssh=Ssh(user=getpass.getuser(), port=port, key=str(key)))
    plan.local[0] = False
    return type(plan)(**{**vars(plan), "inventory": plan.inventory.model_copy(update={"hosts": [host]})})


def why(plan) -> str:
    with pytest.raises(LaunchError) as error:
        transport.ask(plan, 0)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


@needs_sshd
def test_a_host_tells_its_facts_and_each_failure_has_its_reason(server, client, tmp_path, monkeypatch):
    port, key, public = server
    monkeypatch.setattr(transport, "ASK_SECONDS", 60)  # a machine under load
    client(f"[127.0.0.1]:{port} {public}")
    facts = transport.ask(plan_over_ssh(port, key), 0)
    assert facts["chosen"]["devices"] == [0]
    assert "no key" in why(plan_over_ssh(port, new_key(tmp_path / "another")))
    client("")
    assert has_line_naming(why(plan_over_ssh(port, key)), "host key", "`ssh 127.0.0.1`")
    other = Path(f"{new_key(tmp_path / 'impostor')}.pub").read_text()
    client(f"[127.0.0.1]:{port} {other}")
    assert "changed" in why(plan_over_ssh(port, key))


@needs_sshd
def test_a_channel_carries_lines_both_ways_and_closes_with_a_code(server, client):
    port, key, public = server
    client(f"[127.0.0.1]:{port} {public}")
    inventory = plan_over_ssh(port, key).inventory
    line = 'echo begins; read order; echo "$order"; echo oops >&2; read order || exit 7'
    events: queue.Queue = queue.Queue()
    channel = transport.Channel(transport.command(inventory, 0, line), 4, events)
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
        (1, "docker: Cannot connect to the Docker daemon at unix:///run/docker.sock.", "code 1: docker: Cannot", False),
        (1, "Traceback ..\nModuleNotFoundError: No module named 'psutil'", "a Python package is missing", False),
        (1, "bash: line 1: cd: /nowhere: No such file or directory", "check `project`", False),
    ],
)
def test_reasons_in_one_line(code, errors, said, passes):
    line = reason("h", code, errors)
    assert said in line and "\n" not in line
    assert may_pass(code, errors) == passes
