"""The doctor's side on a host: requests and answers are lines of JSON, until the input ends.

`python -m launch.doctor` answers the doctor of another host; people call `./run.sh doctor`.

{"examine": Wanted}              -> findings, traits
{"clock": true}                  -> clock: seconds since 1970, here
{"listen": [address, [port]]}    -> address: the IP listened on; ports: those that were free (0: any free one)
{"connect": [[address, port]]}   -> unreached: [[address, port, why]]
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from launch.doctor.checks.network import open_ports, reach
from launch.doctor.examination import examine_here
from launch.doctor.requirements import Wanted
from launch.network import choose

CONNECT_SECONDS = 3
AT_ONCE = 32


def serve(lines: Iterator[str], answer: Any) -> None:
    """Answer each request of `lines` with a line to the file `answer`; what was opened to listen stays open."""
    listening = []
    for line in lines:
        (kind, value), *_ = json.loads(line).items()
        said: dict[str, Any]
        if kind == "examine":
            findings, found = examine_here(Wanted.of(value))
            said = {"findings": [asdict(finding) for finding in findings], "traits": found}
        elif kind == "clock":
            said = {"clock": time.time()}
        elif kind == "listen":
            address = choose(value[0]).address
            sockets = open_ports(address, value[1])
            listening += sockets
            said = {"address": address, "ports": [one.getsockname()[1] for one in sockets]}
        else:
            said = {"unreached": connect(value)}
        answer.write(json.dumps(said) + "\n")
        answer.flush()


def connect(targets: list[tuple[str, int]]) -> list[tuple[str, int, str]]:
    """Those that cannot be reached, and why."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        reasons = pool.map(lambda target: reach(*target, CONNECT_SECONDS), targets)
    return [(address, port, why) for (address, port), why in zip(targets, reasons, strict=True) if why]


def main() -> None:
    """Answer over this process's input and output; what anything else prints goes to stderr."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answer)


if __name__ == "__main__":
    main()
