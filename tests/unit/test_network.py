"""The NIC that carries an address. What the kernel says is read in another way than by psutil."""

import fcntl
import socket
import struct

import pytest
from naming import has_line_naming, line_naming

from launch import LaunchError
from launch.environment import network
from launch.environment.network import Wire

SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of a NIC
FOUND = {
    "lo": ["127.0.0.1", "::1"],
    "bond0": ["192.0.2.11", "2001:db8::11"],
    "eth1": ["198.51.100.5"],
}


def ipv4_of(nic: str) -> str | None:
    """The first IPv4 address of a NIC, asked of the kernel."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock, SIOCGIFADDR, struct.pack("256s", nic.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def answering(*ips: str):
    """A getaddrinfo that knows every name by these addresses: a test does not write /etc/hosts."""
    return lambda *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 0)) for ip in ips]


def test_the_nics_are_those_of_the_kernel():
    found = network.nics()
    asked = {name: ip for _, name in socket.if_nameindex() if (ip := ipv4_of(name))}
    assert asked["lo"] == "127.0.0.1"
    for name, ip in asked.items():
        if not ip.startswith("169.254.") and name in found:
            assert ip in found[name]
    assert found["lo"][0] == "127.0.0.1"
    assert not any(ip.startswith(("169.254.", "fe80:")) for ips in found.values() for ip in ips)


@pytest.mark.parametrize(
    ("address", "nic", "wire"),
    [
        ("192.0.2.11", "auto", Wire("bond0", "192.0.2.11", "ipv4")),
        ("198.51.100.5", "eth1", Wire("eth1", "198.51.100.5", "ipv4")),
        ("2001:db8::11", "auto", Wire("bond0", "2001:db8::11", "ipv6")),
        ("127.0.0.1", "auto", Wire("lo", "127.0.0.1", "ipv4")),
    ],
)
def test_the_nic_that_carries_the_address_is_taken(address: str, nic: str, wire: Wire):
    assert network.choose(address, nic, FOUND) == wire


@pytest.mark.parametrize(
    ("address", "nic", "said"),
    [
        ("192.0.2.99", "auto", "192.0.2.99 … bond0 with 192.0.2.11 and 2001:db8::11, eth1"),
        ("192.0.2.11", "bond1", "NIC bond1 … bond0 with 192.0.2.11"),
        ("192.0.2.11", "eth1", "NIC eth1 … 192.0.2.11 … nic: bond0, or auto"),
    ],
)
def test_what_is_wrong_is_one_line_with_what_there_is(address: str, nic: str, said: str):
    with pytest.raises(LaunchError) as raised:
        network.choose(address, nic, FOUND)
    assert has_line_naming(str(raised.value), said) and "\n" not in str(raised.value)


def test_of_several_addresses_of_a_name_the_one_that_is_here_is_taken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(socket, "getaddrinfo", answering("203.0.113.1", "198.51.100.5", "192.0.2.11"))
    assert network.choose("node1", "auto", FOUND) == Wire("eth1", "198.51.100.5", "ipv4")
    assert network.choose("node1", "bond0", FOUND) == Wire("bond0", "192.0.2.11", "ipv4")


def test_loopback_does_not_stand_in_for_a_host(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(socket, "getaddrinfo", answering("127.0.1.1"))
    with pytest.raises(LaunchError, match=line_naming("node1", "127.0.1.1", "inventory")):
        network.choose("node1", "auto", FOUND)
    monkeypatch.setattr(socket, "getaddrinfo", answering("127.0.1.1", "192.0.2.11"))
    assert network.resolve("node1") == ["192.0.2.11"]


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("192.0.2.11", True),
        ("192.0.2.12", False),
        ("2001:db8:0::11", True),
        ("127.0.0.1", True),
        ("127.0.1.1", True),  # Debian's, for a host's own name
        ("localhost", True),
        ("node1.invalid", False),
    ],
)
def test_a_host_is_here_if_its_address_is(address: str, here: bool):
    assert network.is_here(address, FOUND) is here
