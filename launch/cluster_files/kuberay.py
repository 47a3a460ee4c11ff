"""A recipe as a RayJob of KubeRay, which Volcano schedules on NPUs."""

import json
import shlex
from typing import Any

from launch.cluster_files.task import Task, image, task
from launch.environment.variables import secret
from launch.plan.start import ASCEND_ADDRESSES, ASCEND_DRIVER
from launch.recipes import Recipe
from launch.recipes.stacks import pins

RESOURCES = {"gpu": "nvidia.com/gpu", "npu": "huawei.com/Ascend910"}
ADDRESS = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
NIC = "eth0"  # the NIC of a pod


def ray_job(recipe: Recipe, model: str | None, data: str | None, out: str | None) -> dict[str, Any]:
    """Return the RayJob. KubeRay retries it once after a failure, and verl then continues from its last checkpoint.

    Raises:
        LaunchError: see `task`.
    """
    made, kind = task(recipe, model, data, out, "", NIC), pins(recipe.stack).devices
    devices = json.dumps(json.dumps({"NPU": recipe.devices_per_node}))  # KubeRay inserts it into a shell command
    group = {"rayStartParams": {"resources": devices} if kind == "npu" else {}, "template": _pod(made, kind)}
    others = recipe.nodes - 1
    size = {"groupName": "workers", "replicas": others, "minReplicas": others, "maxReplicas": others}
    version = pins(recipe.stack).packages.get("ray")
    cluster = {
        **({"rayVersion": version} if version else {}),
        "authOptions": {"mode": "token"},
        "headGroupSpec": group,
        "workerGroupSpecs": [size | group] if others else [],
    }
    spec = {"entrypoint": shlex.join(made.command), "shutdownAfterJobFinishes": True, "backoffLimit": 1}
    labels = {"labels": {"volcano.sh/queue-name": "default"}} if kind == "npu" else {}
    name = recipe.name.replace(".", "-")  # labels of KubeRay cannot contain dots
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name, **labels},
        "spec": {**spec, "rayClusterSpec": cluster},
    }


def _pod(made: Task, kind: str) -> dict[str, Any]:
    """Return the template of a pod; each shared folder is a persistent volume claim with the folder's name."""
    memory = made.recipe.memory.host
    limits = {"memory": f"{memory}Gi"}
    if kind in RESOURCES:
        limits[RESOURCES[kind]] = str(made.recipe.devices_per_node)
    volumes = {"/dev/shm": {"emptyDir": {"medium": "Memory", "sizeLimit": f"{max(memory // 2, 1)}Gi"}}}
    volumes |= {folder: {"persistentVolumeClaim": {"claimName": folder[1:]}} for folder in made.folders}
    if kind == "npu":
        volumes[ASCEND_DRIVER] = {"hostPath": {"path": ASCEND_DRIVER, "type": "Directory"}}
    if image(made.recipe).endswith("-a2"):  # an A3 may not have this file
        volumes[ASCEND_ADDRESSES] = {"hostPath": {"path": ASCEND_ADDRESSES, "type": "File"}}
    names = {path: path.rsplit("/", 1)[-1].replace(".", "-") for path in volumes}
    container = {
        "name": "ray",
        "image": f"ascend-quant:{image(made.recipe)}",
        "env": [_variable(made.recipe.name, name, value) for name, value in (made.variables | made.of_node).items()],
        "resources": {"limits": limits, "requests": dict(limits)},
        "volumeMounts": [{"name": names[path], "mountPath": path} for path in volumes],
    }
    return {"spec": {"containers": [container], "volumes": [{"name": names[at], **one} for at, one in volumes.items()]}}


def _variable(recipe: str, name: str, value: str) -> dict[str, Any]:
    """Return a variable of a pod: its address, a reference to the secret with the recipe's name, or a value."""
    if not value:
        return {"name": name, **ADDRESS}
    if secret(name, value):
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": recipe, "key": name}}}
    return {"name": name, "value": value}
