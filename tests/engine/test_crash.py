"""An engine that dies in the middle of a refit answers nothing more; the next one starts from the checkpoint alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

from models import make

HERE = Path(__file__).parent


def test_a_crash_in_a_refit_and_a_restart(tmp_path):
    seen = tmp_path / "seen.json"
    command = [sys.executable, str(HERE / "crashing_core.py"), str(make("qwen2", tmp_path)), str(seen)]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    found = json.loads(seen.read_text())
    assert "answered" not in (found["refit"], found["after"]) and found["after"] == "EngineDeadError"
    ((receipt, read_back, refusal),) = found["restarted"]
    assert receipt == read_back and refusal is None
    assert found["restarted"] == found["at start"] and found["tokens again"] == found["tokens"]
