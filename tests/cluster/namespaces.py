"""Commands inside the namespaces of another process."""

import subprocess

HOST = ("--mount", "--uts", "--ipc", "--net", "--pid")


def entered(pid: int, *options: str) -> list[str]:
    """The beginning of a command line that runs in namespaces of a process; options of nsenter say which."""
    return ["nsenter", f"--target={pid}", *options, "--"]


def ip(pid: int, *arguments: str) -> str:
    """iproute2's `ip` in the network namespace of a process; returns what it prints.

    Raises:
        RuntimeError: `ip` refused; with its message.
    """
    command = [*entered(pid, "--net"), "ip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
