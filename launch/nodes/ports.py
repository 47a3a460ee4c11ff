"""The ports that a run's Ray listens on, all of them chosen, so that other Rays are no trouble, and who has them.

The first ports of the inventory's range `workers` are the daemons', the others the workers'.
"""

import psutil

DAEMONS = (
    "node-manager-port",
    "object-manager-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
    "metrics-export-port",
    "ray-client-server-port",
)
METRICS = ("AUTOSCALER_METRIC_PORT", "DASHBOARD_METRIC_PORT")  # Ray takes these from the environment
RESERVED = 20


def daemon_ports(ports: dict[str, int | str]) -> dict[str, int]:
    """The port of each daemon, by the option of `ray start`."""
    low, _ = worker_range(ports)
    return {name: low + number for number, name in enumerate(DAEMONS)}


def metrics_ports(ports: dict[str, int | str]) -> dict[str, str]:
    """The variables for Ray's own metrics, which else listen on 44217 and 44227 on every host."""
    low, _ = worker_range(ports)
    return {name: str(low + len(DAEMONS) + number) for number, name in enumerate(METRICS)}


def worker_range(ports: dict[str, int | str]) -> tuple[int, int]:
    """The lowest and the highest port of the range."""
    low, _, high = str(ports["workers"]).partition("-")
    return int(low), int(high)


def needed(role: str, ports: dict[str, int | str]) -> dict[int, str]:
    """The ports that must be free on a host of this role, and what for."""
    daemons = {port: name.removesuffix("-port") for name, port in daemon_ports(ports).items()}
    if role == "worker":
        return {port: name for port, name in daemons.items() if name != "ray-client-server"}
    return {int(ports["ray"]): "ray", int(ports["dashboard"]): "dashboard", **daemons}


def taken(ports: dict[int, str]) -> list[str]:
    """A line for each of these ports that a process listens on, with the process."""
    listeners = {}
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port in ports:
            listeners[connection.laddr.port] = connection.pid
    return [f"port {port} ({ports[port]}) is taken by {named(pid)}" for port, pid in sorted(listeners.items())]


def named(pid: int | None) -> str:
    """A process for people: its id, its user and the beginning of its command."""
    if pid is None:
        return "a process that this user cannot see (another user's, or in another container)"
    try:
        process = psutil.Process(pid)
        command = " ".join(process.cmdline()) or process.name()
        return f"process {pid} of {process.username()}: {command[:80]}"
    except psutil.Error:
        return f"process {pid}"
