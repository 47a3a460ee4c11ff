"""Gathering facts on a host: each module asks one kind of thing; nothing here judges, and nothing is changed."""

import os
from concurrent.futures import ThreadPoolExecutor

from launch.doctor.facts import Devices, Facts, Links, Rdma
from launch.doctor.gather.gpu import gpus
from launch.doctor.gather.kernels import kernels
from launch.doctor.gather.leftovers import leftovers
from launch.doctor.gather.links import links
from launch.doctor.gather.network import network
from launch.doctor.gather.npu import npus
from launch.doctor.gather.paths import paths
from launch.doctor.gather.ray import ray_nodes
from launch.doctor.gather.rdma import rdma
from launch.doctor.gather.software import software
from launch.doctor.gather.system import system
from launch.doctor.wanted import Wanted
from launch.modules import missing, python_path
from launch.stacks import pins

DEVICES = {"npu": npus, "gpu": gpus, "none": Devices}
TORCH_DEVICES = {"npu": "npu", "gpu": "cuda", "none": "cpu"}


def gather(wanted: Wanted) -> Facts:
    """Everything about this host that the checks want to know. Programs are asked at the same time: some are slow."""
    environment = {**os.environ, **wanted.environment}
    kind = pins(wanted.stack).devices
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(kernels, TORCH_DEVICES[kind])
        devices = DEVICES[kind]()
        found = links([device.number for device in devices.found]) if kind == "npu" else Links()
        return Facts(
            devices=devices,
            software=software(environment=environment),
            network=network(wanted),
            links=found,
            system=system(sorted({"/tmp", *([wanted.out] if wanted.out else [])})),
            leftovers=leftovers(),
            ray=ray_nodes(),
            paths=paths(wanted.model, wanted.data, wanted.out, environment),
            variables=environment,
            kernels=asked.result(),
            missing=tuple(missing(wanted.imports, python_path(environment))),
            rdma=rdma() if kind == "gpu" else Rdma(),
        )
