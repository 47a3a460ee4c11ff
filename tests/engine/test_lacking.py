"""A vLLM that lacks what we use: its other engines start as ever, and ours are refused by what is missing.

Names are taken away one at a time, each in a process of its own that has vLLM loaded and the plugin not yet.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import ascend_quant

TAKEN = (  # ten names, of modules, classes and functions; the last is one that no row of the contract has
    "vllm.v1.engine.core:EngineCore.step_with_batch_queue",
    "vllm.v1.engine.core:EngineCore.collective_rpc",
    "vllm.v1.engine.llm_engine:LLMEngine.add_request",
    "vllm.model_executor.model_loader.base_loader:initialize_model",
    "vllm.model_executor.layers.fused_moe:FusedMoEMethodBase",
    "vllm.model_executor.layers.linear:UnquantizedLinearMethod",
    "vllm.model_executor.utils:set_weight_attrs",
    "vllm.v1.engine:EngineCoreOutputs",
    "vllm.v1.request:RequestStatus.get_finished_reason",
    "vllm.engine.arg_utils:EngineArgs.create_model_config",
)
SCRIPT = f"""
import os, sys
from importlib import import_module
from types import FunctionType

import vllm.engine.arg_utils, vllm.v1.engine.core, vllm.v1.engine.llm_engine, vllm.v1.core.sched.scheduler
import vllm.model_executor.layers.fused_moe, vllm.model_executor.model_loader.base_loader
from vllm.plugins import load_general_plugins
from vllm.model_executor.layers.quantization import get_quantization_config

OURS = {str(Path(ascend_quant.__file__).parent)!r}

def replaced():
    found = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "vllm":
            held = [*vars(module).values()]
            held += [inner for one in held if isinstance(one, type) for inner in vars(one).values()]
            found += [one for one in held if isinstance(one, FunctionType) and OURS in one.__code__.co_filename]
    return found

def without(name):
    module, _, path = name.partition(":")
    *owners, last = path.split(".")
    owner = import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    delattr(owner, last)
    load_general_plugins()
    try:
        get_quantization_config("ascend_quant").from_config({{"scheme": "int8"}})
    except Exception as error:
        said = f"{{type(error).__name__}}: {{error}}"
    else:
        said = "served"
    return f"{{len(replaced())}} replaced | {{said}}"

get_quantization_config("fp8")  # vLLM's own methods are loaded with it, and have the names that they need

for name in sys.argv[1:]:
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            said = without(name)
        except BaseException as error:
            said = f"the plugin raised {{type(error).__name__}}: {{error}}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        print("SAID", name, "|", pipe.read().replace("\\n", " "), flush=True)
"""


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """What each process has to say, by the name that it lacks."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, *TAKEN], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    lines = [line.split(" | ", 1) for line in done.stdout.splitlines() if line.startswith("SAID ")]
    return {name.removeprefix("SAID "): rest for name, rest in lines}


@pytest.mark.parametrize("name", TAKEN)
def test_a_vllm_without_it_refuses_our_method_by_name_and_nothing_of_it_is_replaced(said, name):
    assert said[name].startswith("0 replaced | RefitError: ")
    assert name.rpartition(".")[2].rpartition(":")[2] in said[name]


def test_a_whole_vllm_is_served():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "vllm.engine.arg_utils:logger"], capture_output=True, text=True, timeout=600
    )
    assert " replaced | served" in done.stdout and " 0 replaced" not in done.stdout
