"""The audit of the locks, beside a database of the test's own that answers as OSV documents its API."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from launch.images.lock import audit
from launch.images.lock.packages import parse
from launch.images.targets import LOCKS

KNOWN = {("numpy", "1.26.4"): ["PYSEC-2", "GHSA-1"]}


class Database(BaseHTTPRequestHandler):
    """Knows KNOWN; answers `said` in place of that where a test sets it."""

    said: bytes | None = None

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        assert all(one["package"]["ecosystem"] == "PyPI" for one in asked)
        names = [KNOWN.get((one["package"]["name"], one["version"]), []) for one in asked]
        results = [{"vulns": [{"id": name} for name in some]} if some else {} for some in names]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.said or json.dumps({"results": results}).encode())

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Database) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_every_package_of_every_lock_is_asked_about(address: str, monkeypatch, capsys):
    packages = audit.locked()
    torch = next(one for one in parse((LOCKS / "cpu.torch.txt").read_text()) if one.name == "torch")
    assert "+" in torch.version and (torch.name, torch.version.partition("+")[0]) in packages
    monkeypatch.setattr(audit, "AT_ONCE", 100)
    last = list(packages)[-1]
    monkeypatch.setitem(KNOWN, last, ["GHSA-9"])
    assert audit.main(address) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("==".join(last)) and line.endswith("GHSA-9") for line in lines)
    assert all(locks and all((LOCKS / lock).is_file() for lock in locks) for locks in packages.values())


def test_names_and_nothing_to_say(address: str):
    assert list(audit.vulnerable([("numpy", "1.26.4"), ("torch", "2")], address)) == [
        (("numpy", "1.26.4"), ["GHSA-1", "PYSEC-2"])
    ]
    assert list(audit.vulnerable([("torch", "2")], address)) == []


@pytest.fixture
def one_package(monkeypatch):
    monkeypatch.setattr(audit, "locked", lambda: {("numpy", "1.26.4"): ["some.txt"]})


@pytest.mark.usefixtures("one_package")
@pytest.mark.parametrize("said", [b"<html>", b"[]", b"{}", b'{"results": []}', b'{"results": [5]}', b"\xff"])
def test_an_answer_that_is_none_is_no_all_clear(address: str, monkeypatch, capsys, said: bytes):
    monkeypatch.setattr(Database, "said", said)
    assert audit.main(address) == 2 and address in capsys.readouterr().err


@pytest.mark.usefixtures("one_package")
def test_a_database_that_is_not_reached_is_no_all_clear(capsys):
    assert audit.main("http://127.0.0.1:9") == 2 and "were not audited" in capsys.readouterr().err
