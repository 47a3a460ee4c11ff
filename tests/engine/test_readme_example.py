"""The README's vLLM example runs as it stands, from the wheel, and its refit gives a fresh engine's bytes.

Small models stand in the places of the large one and of its later step. vLLM and the rest are this environment's.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import built
from models import make

README = built.ROOT / "README.md"
RECEIPT = re.compile(r"Receipt\(number=(\d+), .*digest='(\w+)'")
# Behind the example, with its engine, and then with one that has started from the later step.
AFTER = """
    print("after:", llm.generate("1+1=")[0].outputs[0].text)
    del llm
    LLM({then!r}, quantization="ascend_quant", enforce_eager=True)
"""
# In every process that imports the package: where it comes from.
TOLD = "import ascend_quant, sys; print('ascend_quant of', ascend_quant.__file__, file=sys.stderr)\n"


def installed(folder: Path) -> Path:
    """The wheel in a folder of its own, with its entry points."""
    wheel = built.build(built.copy(folder / "tree"), "build_wheel", folder / "wheel")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", folder / "site", wheel], check=True, timeout=120)
    return folder / "site"


def test_the_vllm_example_runs(tmp_path):
    site, start, then = installed(tmp_path), make("qwen2", tmp_path), make("qwen2", tmp_path, seed=2)
    code = re.search(r"## Use it with vLLM\n\n```python\n(.*?)```", README.read_text(), re.DOTALL)[1]
    code = code.replace("Qwen/Qwen2.5-7B-Instruct", str(start)).replace("checkpoints/step-2", str(then))
    code += AFTER.format(then=str(then))
    script = tmp_path / "example.py"
    script.write_text(TOLD + code)
    variables = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO", "PYTHONPATH": str(site)}
    command, environment = [sys.executable, str(script)], os.environ | variables
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=800)
    said = run.stdout + run.stderr
    assert run.returncode == 0, said[-4000:]
    assert set(re.findall(r"ascend_quant of (.*)", said)) == {str(site / "ascend_quant" / "__init__.py")}
    assert "after:" in run.stdout
    (one, first), (two, refitted), (another, fresh) = RECEIPT.findall(said)
    assert (one, two, another) == ("1", "2", "1")
    assert refitted == fresh != first
