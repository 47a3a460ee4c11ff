"""vLLM promises no order among its plugins: ours before vllm-ascend's, and behind them."""

import subprocess
import sys
from pathlib import Path

import pytest

from npu_host import two_ranks

pytestmark = [
    pytest.mark.each_version,
    pytest.mark.long("ascend_quant/integrations", "pyproject.toml", "tests/npu_host"),
]

SCRIPT = Path(__file__).with_name("plugin_order.py")
SECONDS = 200


def test_ours_may_come_first_or_last(tmp_path):
    """Both at once, each in a process of its own."""
    running = {}
    for first in ("ours", "theirs"):
        folder = tmp_path / first
        folder.mkdir()
        with (folder / "log").open("w") as log:
            command = [sys.executable, SCRIPT, first, folder]
            environment = two_ranks.environment()
            running[folder] = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        codes = {folder.name: process.wait(SECONDS) for folder, process in running.items()}
    finally:
        for process in running.values():
            process.kill()
    assert codes == {"ours": 0, "theirs": 0}, "\n".join((folder / "log").read_text()[-3000:] for folder in running)
