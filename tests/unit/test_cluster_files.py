"""`recipe show --as`: each file is valid, and starts the recipe's own command with the variables of its stack."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from command_cases import understood
from test_compose import services
from typer.testing import CliRunner

from launch.commands import app
from launch.environment.resolve import OF_DEVICES, OF_HOST, rows
from launch.recipes import Paths, load, resolve
from launch.recipes.stacks import pins
from launch.recipes.verl import verl_of

SHELLCHECK = Path(sys.prefix) / "bin" / "shellcheck"
PATHS = {"model": "/models/one of two", "data": "/work/data", "out": "/work/runs/one"}
RECIPES = {"qwen2.5-7b-int8-gsm8k-h100": 1, "qwen3-30b-a3b-int8-grpo-h200": 1, "qwen3-30b-a3b-int8-grpo-2xa2": 2}
SECRET = ["--set", "environment.WANDB_API_KEY=hush-hush", "--set", "environment.WANDB_PROJECT=a 'b' \"c\""]


def shown(recipe: str, form: str, *options: str, code: int = 0) -> str:
    """Return the command's standard output, or the error of a command that fails."""
    paths = [word for name, value in PATHS.items() for word in (f"--{name}", value)]
    done = CliRunner().invoke(app, ["recipe", "show", recipe, "--as", form, *paths, *options])
    assert done.exit_code == code, done.output
    assert "hush-hush" not in done.output
    return done.stderr if code else done.stdout


def command(recipe: str) -> list[str]:
    """The command of a recipe that continues from its last checkpoint."""
    chosen = load(recipe)
    return ["python", "-m", verl_of(chosen.stack).main, *resolve(chosen, Paths(**PATHS)), "trainer.resume_mode=auto"]


def fixed(stack: str) -> dict[str, str]:
    """The table's variables that need no more than their stack."""
    return {row.name: row.value for row in rows(stack) if "{" not in row.value}


def of_node(stack: str) -> set[str]:
    return {row.name for row in rows(stack) if row.name in OF_HOST - OF_DEVICES}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_script_for_slurm(recipe: str, tmp_path):
    text, stack = shown(recipe, "slurm", *SECRET), load(recipe).stack
    file = tmp_path / "job.sbatch"
    file.write_text(text)
    checked = subprocess.run([SHELLCHECK, file], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    settings = dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", text, re.M))
    assert (settings["nodes"], settings["ntasks-per-node"]) == (str(RECIPES[recipe]), "1")
    devices = {"gpu": ("gpus-per-node", "{}"), "npu": ("gres", "npu:{}")}[pins(stack).devices]
    assert settings[devices[0]] == devices[1].format(load(recipe).devices_per_node)
    head = text[: text.index("set -euo pipefail")]
    told = "address=192.0.2.7; nic=bond0; variables_of_node; printf '%s\\0' \"${command[@]}\"; echo; env -0"
    shell = {"PATH": "/usr/bin:/bin", "WANDB_API_KEY": "mine"}
    said = subprocess.run(["bash", "-c", head + told], env=shell, capture_output=True, text=True, check=True).stdout
    words, variables = (part.strip("\0").split("\0") for part in said.split("\n", 1))
    assert words == command(recipe)
    found = dict(one.split("=", 1) for one in variables)
    assert found.items() >= {**fixed(stack), "WANDB_API_KEY": "mine", "WANDB_PROJECT": "a 'b' \"c\""}.items()
    assert found["GLOO_SOCKET_IFNAME"] == "bond0" and found["VLLM_HOST_IP"] == "192.0.2.7"
    assert found.keys() >= of_node(stack) and not found.keys() & OF_DEVICES


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_ray_job_for_kuberay(recipe: str):
    job, chosen = yaml.safe_load(shown(recipe, "kuberay", *SECRET)), load(recipe)
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert shlex.split(job["spec"]["entrypoint"]) == command(recipe)
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert 1 + sum(group["replicas"] for group in cluster["workerGroupSpecs"]) == RECIPES[recipe]
    for group in groups:
        check_pod(group, chosen.stack, chosen.devices_per_node)
    assert ("volcano.sh/queue-name" in job["metadata"].get("labels", {})) == (pins(chosen.stack).devices == "npu")
    assert "&" not in shown(recipe, "kuberay")  # no YAML alias
    assert json.loads(shown(recipe, "kuberay", "--json", *SECRET)) == job


def check_pod(group: dict[str, Any], stack: str, devices: int) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": group["template"]["spec"]}
    kubernetes_validate.validate(pod, "1.32", strict=True)
    (container,) = pod["spec"]["containers"]
    variables = {one["name"]: one.get("value") or next(iter(one["valueFrom"].values())) for one in container["env"]}
    assert variables.items() >= {**fixed(stack), "WANDB_PROJECT": "a 'b' \"c\""}.items()
    assert variables["WANDB_API_KEY"]["key"] == "WANDB_API_KEY"
    assert variables["VLLM_HOST_IP"] == {"fieldPath": "status.podIP"} and variables["GLOO_SOCKET_IFNAME"] == "eth0"
    assert variables.keys() >= of_node(stack) and not variables.keys() & OF_DEVICES
    mounted = [one["mountPath"] for one in container["volumeMounts"]]
    assert {"/dev/shm", "/work", "/models"} <= set(mounted) and len(set(mounted)) == len(mounted)
    kind = "npu" if pins(stack).devices == "npu" else "gpu"
    limit = {"npu": "huawei.com/Ascend910", "gpu": "nvidia.com/gpu"}[kind]
    assert container["resources"]["limits"][limit] == container["resources"]["requests"][limit] == str(devices)
    given = [f"--{name}={value}" for name, value in group["rayStartParams"].items()]  # as KubeRay writes its line
    said = subprocess.run(["bash", "-c", f"printf '%s' {' '.join(given)}"], capture_output=True, text=True).stdout
    assert (json.loads(said.partition("=")[2]) == {"NPU": devices}) if kind == "npu" else not given


@pytest.mark.parametrize(
    ("recipe", "service"), [("qwen2.5-7b-int8-gsm8k-h100", "cuda"), ("qwen2.5-7b-int8-gsm8k-a2", "ascend-a2")]
)
def test_a_compose_file(recipe: str, service: str):
    (train,) = yaml.safe_load(shown(recipe, "docker-compose", *SECRET))["services"].values()
    assert train["extends"]["service"] == service
    assert train.get("image", services()[service]["image"]).endswith(services()[service]["image"].rsplit("-", 1)[-1])
    understood(train["command"])
    assert train["command"] == ["train", recipe, "--model", PATHS["model"]]
    expected = {name: value for name, value in fixed(load(recipe).stack).items() if not name.startswith("RAY_")}
    expected |= load(recipe).environment
    assert train["environment"].items() >= {**expected, "WANDB_API_KEY": None}.items()
    assert not train["environment"].keys() & OF_HOST


def test_what_a_file_cannot_start_is_refused():
    own = f"recipe.files={{mine.py: {__file__}}}"
    assert "mine.py" in shown("addition-int8", "slurm", "--set", own, code=2)
    assert "trainer.nnodes=1" in shown("qwen3-30b-a3b-int8-grpo-2xa2", "docker-compose", code=2)
    assert "--json" in shown("qwen2.5-7b-int8-gsm8k-h100", "slurm", "--json", code=2)
