"""Per-run names of the ZMQ sockets that carry weight buckets to the engines of a host.

verl names them by Ray's job id, which is the same in every Ray, and a sender takes over a name that is in use. So of
two runs on one host, one's engines would get the other's weights, with digests that fit them. No two nodes of Ray have
one id. An older verl names the socket by the device, and that stays.
"""

import os

import ray

JOB = "VERL_RAY_JOB_ID"  # verl's own: from it the engine's processes, which know no Ray, make the name
DIGITS = 16  # of the node's id; with the whole of it, the path would be longer than Linux takes


def name_for_engine() -> None:
    """Set verl's job id variable to this run's own, for the engine processes that will be started from this one."""
    os.environ[JOB] = _of_this_node(ray.get_runtime_context().get_job_id())


def socket_name_for_run(address: str) -> str:
    """Turn the ZMQ address that verl gives a sender into the one that `name_for_engine` leads to on the same host."""
    if not ray.is_initialized():
        return address
    job = ray.get_runtime_context().get_job_id()
    return address.replace(f"-{job}-", f"-{_of_this_node(job)}-")


def _of_this_node(job: str) -> str:
    return f"{job}-{ray.get_runtime_context().get_node_id()[:DIGITS]}"
