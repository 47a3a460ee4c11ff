"""Process 1 of a simulated host: makes what is private to it, starts sshd, then reaps orphans until it is killed.

    unshare --mount --uts --ipc --net --pid --fork --kill-child --mount-proc python first_process.py SETTINGS

SETTINGS is a JSON object: name; empty (folders that begin empty); copied (folders that begin as a copy); kept (paths
that stay visible inside these); staging (an empty folder under a kept path); sshd (its command line); ssh_port.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

SIZE = "size=4g"


def mount(*arguments: str) -> None:
    subprocess.run(["mount", "--no-mtab", *arguments], check=True)  # its table is in /run, which is covered too


def make_private(folder: Path, staging: Path, kept: list[Path], copied: bool) -> None:
    """Cover a folder by one in memory, in which the kept paths are still there."""
    mount("-t", "tmpfs", "-o", f"{SIZE},mode={folder.stat().st_mode & 0o7777:o}", "tmpfs", str(staging))
    if copied:
        shutil.copytree(folder, staging, symlinks=True, dirs_exist_ok=True)
    for path in kept:
        if path.is_relative_to(folder) and not any(other in path.parents for other in kept):  # an outer one brings it
            inside = staging / path.relative_to(folder)
            inside.mkdir(parents=True)
            mount("--rbind", str(path), str(inside))
    mount("--move", str(staging), str(folder))


def admit_root() -> None:
    """An account whose password begins with `!` is locked, and sshd then refuses its key too."""
    shadow = Path("/etc/shadow")
    shadow.write_text(re.sub(r"^root:[^:]*:", "root:*:", shadow.read_text(), flags=re.MULTILINE))


def start_network() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for which in ("all", "default"):  # an IPv6 address may be used at once, not after a second of asking around
        Path(f"/proc/sys/net/ipv6/conf/{which}/accept_dad").write_text("0")


def wait_for_port(port: int) -> None:
    """Until a process listens there; asked of the kernel, because sshd starts a process for each caller."""
    for _ in range(200):
        if f" 00000000:{port:04X} 00000000:0000 0A " in Path("/proc/net/tcp").read_text():
            return
        time.sleep(0.02)
    sys.exit(f"sshd does not listen on port {port}")


def main() -> None:
    settings = json.loads(sys.argv[1])
    staging, kept = Path(settings["staging"]), [Path(path) for path in settings["kept"]]
    socket.sethostname(settings["name"])
    mount("-t", "sysfs", "sysfs", "/sys")  # the interfaces of this network namespace
    for copied in (False, True):
        for folder in settings["copied" if copied else "empty"]:
            make_private(Path(folder), staging, kept, copied)
    Path("/run/sshd").mkdir()
    admit_root()
    start_network()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    subprocess.Popen(settings["sshd"], preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD}))
    wait_for_port(settings["ssh_port"])
    print("ready", flush=True)
    while True:
        signal.sigwait({signal.SIGCHLD})
        with contextlib.suppress(ChildProcessError):  # nothing is left to wait for: sshd was killed
            while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):
                pass


main()
