"""The README's vLLM example runs as it stands, with a small model in the place of the large one."""

import os
import re
import subprocess
import sys
from pathlib import Path

from models import make

README = Path(__file__).parents[2] / "README.md"


def test_the_vllm_example_runs(tmp_path):
    code = re.search(r"## Use it with vLLM\n\n```python\n(.*?)```", README.read_text(), re.DOTALL)[1]
    code = code.replace("Qwen/Qwen2.5-7B-Instruct", str(make("qwen2", tmp_path)))
    code = code.replace("checkpoints/step-2", str(make("qwen2", tmp_path, seed=2)))
    script = tmp_path / "example.py"
    script.write_text("if __name__ == '__main__':\n" + re.sub(r"^", "    ", code, flags=re.M))
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    run = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=400)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
