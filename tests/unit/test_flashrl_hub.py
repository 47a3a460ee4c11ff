"""A config and a profile on the Hugging Face hub: the real client against a hub of this test, which speaks HTTP."""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from naming import has_line_naming

FILES = {
    "/owner/name/resolve/main/flashrl_config.yaml": b"configs:\n- {fn: bf16}\n",
    "/owner/name/resolve/main/rl/hybrid.yaml": b"configs:\n- {fn: int8, profile: owner/name/p.pt}\n- {fn: fp8}\n",
    "/owner/name/resolve/main/p.pt": b"a profile",
}
RESOLVE = """
import sys
from ascend_quant.flashrl.config import resolve
from ascend_quant.flashrl.files import ConfigError
try:
    replicas = resolve(sys.argv[1]).replicas
    print([replica.fn for replica in replicas])
    print(open(replicas[0].options().get("profile", "/dev/null")).read())
except ConfigError as error:
    print(error)
"""


class Hub(BaseHTTPRequestHandler):
    """A file of one commit, with the headers that the client asks for."""

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        content = FILES.get(self.path)
        self.send_response(200 if content else 404)
        self.send_header("Content-Length", str(len(content or b"")))
        if content:
            self.send_header("ETag", f'"{hash(content)}"')
            self.send_header("X-Repo-Commit", "0" * 40)
        else:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.end_headers()
        if content and self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def resolved(tmp_path):
    """What a process of its own, with an empty cache, makes of a value; the client reads its variables at import."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = {"HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path), "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}

    def ask(value: str, **variables: str) -> str:
        environment = {**os.environ, **here, **variables}
        command = [sys.executable, "-c", RESOLVE, value]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout

    yield ask
    server.shutdown()
    server.server_close()


def test_a_config_and_a_profile_come_from_a_repository_and_offline_from_the_cache(resolved):
    assert resolved("owner/name").startswith("['bf16']")
    assert resolved("owner/name", HF_HUB_OFFLINE="1").startswith("['bf16']")
    assert resolved("owner/name/rl/hybrid.yaml") == "['int8', 'fp8']\na profile\n"
    for variables in ({}, {"HF_HUB_OFFLINE": "1"}):
        answer = resolved("owner/name/missing.yaml", **variables)
        assert has_line_naming(answer, "FLASHRL_CONFIG='owner/name/missing.yaml':", "missing.yaml of owner/name")
