"""Part "engine": weight syncs of a real vLLM engine with the model's true shapes, over one GPU or several."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ascend_quant import schemes
from benchmarks.tasks import Task
from benchmarks.timing import rotated

OURS = tuple(scheme.name for scheme in schemes.SCHEMES.values() if scheme.quantized)
SCHEMES = {
    "bf16": {},
    "fp8-vllm": {"quantization": "fp8"},
    **{
        scheme: {
            "quantization": "ascend_quant",
            "hf_overrides": {"quantization_config": {"quant_method": "ascend_quant", "scheme": scheme}},
        }
        for scheme in OURS
    },
}
WAYS = {"fp8-vllm": ("reload",)}
ALL_WAYS = ("bare", "session", "reload")
SETTINGS = {
    "dtype": "bfloat16",
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 2048,
    "kv_cache_memory_bytes": 1 << 30,
    "worker_extension_cls": "benchmarks.worker.Extension",
}
Ask = Callable[..., list]


@contextmanager
def started(task: Task) -> Iterator[Ask]:
    """Start a vLLM engine that holds a trainer with the model's tensors on each GPU; yields a call to all of these."""
    from vllm import LLM

    import benchmarks.worker  # noqa: F401  registers our plugin

    options = {"tensor_parallel_size": task.ranks, "enable_expert_parallel": task.expert_parallel}
    if task.ranks > 1:
        options |= {"distributed_executor_backend": "mp", "disable_custom_all_reduce": True}
    with tempfile.TemporaryDirectory(prefix="model-") as folder:
        task.cut_model().write_config(Path(folder))
        llm = LLM(folder, **SETTINGS, **SCHEMES[task.scheme], **options)
        try:
            llm.collective_rpc("bench_start", args=(task,))
            yield lambda method, *args: llm.collective_rpc("bench", args=(method, *args))
        finally:
            llm.llm_engine.engine_core.shutdown()


def run(task: Task) -> dict:
    """Time every way in which weights can reach an engine of the task's scheme; check the bytes of ours."""
    with started(task) as ask:
        first, refused = attempts(ask, WAYS.get(task.scheme, ALL_WAYS))
        result = {"moved": max(ask("moved")), "first": first, "refused": refused}
        result["samples"] = syncs(ask, tuple(first), task.rounds)
        result["faults"] = []
        if task.scheme in OURS:
            result["faults"] += [f"{way}: {why}" for way, why in refused.items()] + faults(ask)
            if task.cut_model().experts:
                stacked(ask, task.rounds, result)
    return result


def attempts(ask: Ask, ways: tuple[str, ...]) -> tuple[dict[str, dict], dict[str, str]]:
    """Try each way once, compilation included; returns their times, and each refusal in the engine's words."""
    first, refused = {}, {}
    for way in ways:
        try:
            first[way] = slowest(ask("sync", way))
        except Exception as error:
            refused[way] = f"{type(error).__name__}: {error}"
    return first, refused


def syncs(ask: Ask, ways: tuple[str, ...], rounds: int) -> dict[str, list[dict]]:
    """Time each way once a round, another one first in every round."""
    samples: dict[str, list[dict]] = {way: [] for way in ways}
    for turn in range(rounds):
        for way in rotated(list(ways), turn):
            samples[way].append(slowest(ask("sync", way)))
    return samples


def slowest(ranks: list[dict]) -> dict:
    """Return the slowest rank's sample: a sync takes as long as that."""
    return max(ranks, key=lambda sample: sample["ms"])


def faults(ask: Ask) -> list[str]:
    """List what is wrong with the bytes of each rank."""
    return [f"rank {rank}: {fault}" for rank, found in enumerate(ask("faults")) for fault in found]


def stacked(ask: Ask, rounds: int, result: dict) -> None:
    """Time the sync with stacked experts, where this vLLM takes them: the first one is a refit without a plan."""
    first, refused = attempts(ask, ("stacked",))
    if refused:
        ask("sync", "bare")  # heals the engine
    result["first"] |= first
    result["refused"] |= refused
    result["samples"] |= syncs(ask, tuple(first), rounds)
    result["faults"] += faults(ask)
