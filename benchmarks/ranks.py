"""Part "ranks": one engine over several GPUs; every rank has all tensors, as trainers send them, and takes its part."""

from benchmarks.engine import started, syncs
from benchmarks.tasks import Task

WAYS = ("bare", "session")


def run(task: Task) -> dict:
    """Time the syncs on every rank, which begin together; check each rank's bytes."""
    several = {"distributed_executor_backend": "mp", "disable_custom_all_reduce": True} if task.ranks > 1 else {}
    parallel = {"tensor_parallel_size": task.ranks, "enable_expert_parallel": task.expert_parallel}
    with started(task, task.scheme, **several, **parallel) as llm:

        def ask(method: str, *args) -> list:
            return llm.collective_rpc("bench", args=(method, *args))

        result = {"facts": ask("facts"), "first": ask("sync", "bare")}
        result["samples"] = syncs(ask, WAYS, task.rounds)
        if task.cut_model().experts:
            ask("sync", "stacked")  # other names: the plan of the last refit does not know them
            result["samples"] |= syncs(ask, ("stacked",), task.rounds)
        faults = ask("faults")
    result["faults"] = [f"rank {rank}: {fault}" for rank, found in enumerate(faults) for fault in found]
    return result
