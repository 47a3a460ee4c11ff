"""Asks torch_npu 2.7.1, in an interpreter of its own, whether it takes recorded calls: see replay.py.

$NPU27_PYTHON is that interpreter, of an environment made from docker/locks/npu-2.7.txt.
"""

import json
import os
import subprocess
from pathlib import Path

VARIABLE = "NPU27_PYTHON"
NEWER = {  # operators that it lacks, and need not have
    "npu::npu_grouped_matmul_swiglu_quant_v2",  # used only where it is
    "npu::_npu_moe_token_unpermute",  # what a newer npu_moe_token_unpermute calls
}
REPLAY = Path(__file__).with_name("replay.py")


def is_there() -> bool:
    """Whether the variable is set."""
    return bool(os.environ.get(VARIABLE))


def verdicts(calls: Path) -> list[str]:
    """One a call of a file that recorder.write_calls wrote: "" if torch_npu 2.7.1 takes it, else why not."""
    command = [os.environ[VARIABLE], str(REPLAY), str(calls)]
    environment = {
        name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"
    }  # our stubs are there
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with exit code {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])
