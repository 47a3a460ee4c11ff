"""`vllm serve` in a process of its own, with a small model, and what its HTTP clients get."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from models import make

VLLM = str(Path(sys.executable).with_name("vllm"))
PROMPT = [3, 4, 5]
SECONDS = 400  # for a server to start, on a busy machine


@contextmanager
def server(folder: Path, *options: str, **environment: str) -> Iterator[tuple[str, Path]]:
    """A server with variables of its environment; yields its address and its log."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    log = folder / "server.log"
    usual = ("--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "64", "--max-num-seqs", "8")
    model = str(make("qwen2", folder))
    command = [VLLM, "serve", model, "--served-model-name", "tiny", "--port", port, *usual, *options]
    variables = {**os.environ, "VLLM_LOGGING_LEVEL": "INFO", **environment}
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=variables, stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait_until_ready(f"http://127.0.0.1:{port}/health", process, log)
            yield f"http://127.0.0.1:{port}", log
        finally:
            process.terminate()
            process.wait(60)


def _wait_until_ready(address: str, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(1)
    raise AssertionError(f"not ready after {SECONDS} s: {log.read_text()[-3000:]}")


def post(address: str, path: str, wanted: dict[str, Any]) -> tuple[int, str]:
    """The status and the body of an answer."""
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(address + path, json.dumps(wanted).encode(), head)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def wanted(**more: Any) -> dict[str, Any]:
    """The body of an OpenAI-style request for a completion."""
    return {"model": "tiny", "prompt": PROMPT, "max_tokens": 4, "temperature": 0, "logprobs": 2, **more}


def complete(address: str) -> dict[str, Any]:
    """The first choice of a completion."""
    status, body = post(address, "/v1/completions", wanted())
    assert status == 200, body
    return json.loads(body)["choices"][0]
