"""Per-run names of the ZMQ sockets that carry weight buckets to the engines of a host.

verl derives the names from Ray's job id, which is the same in every Ray cluster, and a sender takes over a name that is
in use. So with two runs on one host, the engines of one would get the weights of the other, with matching digests.
Ray's node ids are unique. The names of older verl versions, which are derived from the device, are not changed.
"""

import os

import ray

JOB = "VERL_RAY_JOB_ID"  # verl's variable, from which engine processes derive the name without Ray
DIGITS = 16  # of the node's id; with the whole id, the path would exceed Linux's limit


def name_for_engine() -> None:
    """Set verl's job id variable to a value unique to this run, for the engine processes that this process starts."""
    os.environ[JOB] = _of_this_node(ray.get_runtime_context().get_job_id())


def socket_name_for_run(address: str) -> str:
    """Map a verl sender's ZMQ address to the one that results from `name_for_engine` on the same host."""
    if not ray.is_initialized():
        return address
    job = ray.get_runtime_context().get_job_id()
    return address.replace(f"-{job}-", f"-{_of_this_node(job)}-")


def _of_this_node(job: str) -> str:
    return f"{job}-{ray.get_runtime_context().get_node_id()[:DIGITS]}"
