"""The short form of benchmarks/soak.py: every way in which a refit fails, once, with 64 requests in flight."""

import json
import os
import subprocess
import sys
from pathlib import Path

from models import make

from benchmarks.soak_worker import FAULTS


def test_every_failing_refit_under_load_is_told_to_all_clients_and_healed(tmp_path):
    out, bad = tmp_path / "found.json", len(FAULTS)
    command = [sys.executable, "-m", "benchmarks.soak", str(make("qwen2", tmp_path)), "--out", str(out)]
    command += ["--refits", str(bad + 4), "--bad", str(bad)]
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    run = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, timeout=300
    )
    found = json.loads(out.read_text()) if out.is_file() else {"problems": run.stderr[-3000:]}
    assert found["problems"] == [] and run.returncode == 0
    assert found["ends"]["error"] >= bad and found["ends"]["length"] > 0
