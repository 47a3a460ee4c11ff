"""With the engine core in a process of its own: requests are refused one by one, and the engine lives to be healed."""

import json
import os
import subprocess
import sys
from pathlib import Path

from models import make

HERE = Path(__file__).parent


def test_a_bad_refit_refuses_requests_without_ending_the_engine(tmp_path):
    seen = tmp_path / "seen.json"
    command = [sys.executable, str(HERE / "separate_core.py"), str(make("qwen2", tmp_path)), str(seen)]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    found = json.loads(seen.read_text())
    assert "o_proj" in found["error"] and "1 of 16384 elements are NaN" in found["error"]
    assert found["refused"] == [["error", 0], ["error", 0]]
    assert found["at start"] == found["healed"] == ["length", 4]
