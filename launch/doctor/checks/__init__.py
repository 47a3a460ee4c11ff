"""The checks, in the order of the report: devices first, then what runs on them, then the host around them."""

from launch.doctor.checking import Check
from launch.doctor.checks import (
    devices,
    kernels,
    leftovers,
    links,
    network,
    paths,
    ray,
    rdma,
    system,
    variables,
    versions,
)

MODULES = (devices, versions, kernels, network, links, rdma, variables, paths, system, ray, leftovers)
CHECKS = tuple(value for module in MODULES for value in vars(module).values() if isinstance(value, Check))
