"""`./run.sh lint --audit`: which packages of the locks have known vulnerabilities, by OSV's database, which is asked.

It needs the network and is not part of CI: a lock that was well yesterday may not be today, whoever changes what.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.request import Request, urlopen

from ascend_quant.documents import BadDocument, parse_json
from launch.errors import LaunchError
from launch.images.lock.packages import parse
from launch.images.targets import LOCKS
from launch.software import public

ADDRESS = "https://api.osv.dev/v1/querybatch"  # Python's packages of PyPI, by PyPA's and GitHub's advisories
SECONDS, MOST_BYTES = 60, 32 << 20
AT_ONCE = 500  # questions; OSV takes 1000
NO_LOCKS = ("excludes.txt", "overrides.txt")
FOUND, NOT_ASKED = 1, 2

Package = tuple[str, str]  # name, version without a build's suffix


def locked(folder: Path = LOCKS) -> dict[Package, list[str]]:
    """Every package of every lock, with the locks that have it; lines with pip's options are passed over.

    Raises:
        LaunchError: a file is no lock.
    """
    found: dict[Package, list[str]] = {}
    for file in sorted(folder.glob("*.txt")):
        if file.name.endswith(NO_LOCKS):
            continue
        try:
            lines = [line for line in file.read_text().splitlines() if not line.startswith("-")]
            packages = {(one.name, public(one.version)) for one in parse("\n".join(lines))}
        except ValueError as error:
            raise LaunchError(f"{file}: {error}") from error
        for package in sorted(packages):
            found.setdefault(package, []).append(file.name)
    return found


def vulnerable(packages: Iterable[Package], address: str = ADDRESS) -> Iterator[tuple[Package, list[str]]]:
    """Those with known vulnerabilities, and their names in the database.

    Raises:
        LaunchError: it was not reached, or answered something else.
    """
    asked = list(packages)
    for start in range(0, len(asked), AT_ONCE):
        some = asked[start : start + AT_ONCE]
        queries = [{"package": {"name": name, "ecosystem": "PyPI"}, "version": version} for name, version in some]
        try:
            results = _asked(address, {"queries": queries})["results"]
            names = [[one["id"] for one in result.get("vulns", [])] for result in results]
            answers = list(zip(some, names, strict=True))
        except (OSError, BadDocument, AttributeError, KeyError, TypeError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"
            raise LaunchError(f"{address} gave no answer ({why}): the locks were not audited") from error
        yield from ((package, sorted(found)) for package, found in answers if found)


def _asked(address: str, question: Mapping[str, object]) -> dict:
    request = Request(address, json.dumps(question).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=SECONDS) as answer:
        return parse_json(answer.read(MOST_BYTES).decode(), address)


def main(address: str = ADDRESS) -> int:
    """Print a line for each package; 1 if there are some, 2 if they could not be asked about."""
    try:
        packages = locked()
        found = list(vulnerable(packages, address))
    except LaunchError as error:
        print(error, file=sys.stderr)
        return NOT_ASKED
    for package, names in found:
        print(f"{'=='.join(package)} ({', '.join(packages[package])}): {', '.join(names)}")
    print(f"{len(packages)} packages, {len(found)} with known vulnerabilities", file=sys.stderr)
    return FOUND if found else 0


if __name__ == "__main__":
    sys.exit(main())
