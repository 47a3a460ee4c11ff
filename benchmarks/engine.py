"""Part "engine": weight syncs of a real vLLM engine with the model's true shapes, in this process."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file

from ascend_quant import schemes
from benchmarks.tasks import Task
from benchmarks.tensors import Weights
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
DEFAULT = ("bf16", "fp8-vllm", "int8")
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


@contextmanager
def started(task: Task, scheme: str, seed: int | None = None, **options) -> Iterator:
    """A vLLM engine that holds a trainer with the model's tensors on each of its devices.

    Args:
        seed: of a checkpoint that it loads when it starts; None for dummy weights.
    """
    from vllm import LLM

    import benchmarks.worker  # noqa: F401  registers our plugin

    with tempfile.TemporaryDirectory(prefix="model-") as folder:
        task.cut_model().write_config(Path(folder))
        if seed is not None:
            write_checkpoint(task, seed, Path(folder))
            options["load_format"] = "safetensors"
        llm = LLM(folder, **{**SETTINGS, **SCHEMES[scheme], **options})
        try:
            llm.collective_rpc("bench_start", args=(task,))
            yield llm
        finally:
            llm.llm_engine.engine_core.shutdown()


def write_checkpoint(task: Task, seed: int, folder: Path) -> None:
    """The weights that a trainer on this device draws from the seed."""
    weights = Weights(task.cut_model(), torch.device(task.device), seed)
    save_file({name: tensor.cpu() for name, tensor in weights.named()}, folder / "model.safetensors")


def run(task: Task) -> dict:
    """Time every way in which weights can reach an engine of the scheme `task.variant`; check the bytes of ours."""
    with started(task, task.variant) as llm:

        def ask(method: str, *args):
            return llm.collective_rpc("bench", args=(method, *args))[0]

        first, refused = attempts(ask, WAYS.get(task.variant, ALL_WAYS))
        result = {**ask("facts"), "first": first, "refused": refused}
        result["samples"] = syncs(ask, tuple(first), task.rounds)
        if task.variant in OURS:
            result["faults"] = [f"{way}: {why}" for way, why in refused.items()] + ask("faults")
            result["samples"] |= syncs(ask, ("loaders",), task.rounds)  # apart: it forgets the plan
            if task.cut_model().experts:
                stacked(ask, task.rounds, result)
    return result


def attempts(ask: Callable, ways: tuple[str, ...]) -> tuple[dict[str, dict], dict[str, str]]:
    """Each way once, what is compiled on the way included; and those that this engine refuses, with its words."""
    first, refused = {}, {}
    for way in ways:
        try:
            first[way] = ask("sync", way)
        except Exception as error:
            refused[way] = f"{type(error).__name__}: {error}"
    return first, refused


def syncs(ask: Callable, ways: tuple[str, ...], rounds: int) -> dict[str, list]:
    """Each way once a round, another one first in every round."""
    samples: dict[str, list] = {way: [] for way in ways}
    for turn in range(rounds):
        for way in rotated(list(ways), turn):
            samples[way].append(ask("sync", way))
    return samples


def stacked(ask: Callable, rounds: int, result: dict) -> None:
    """The same with stacked experts, where this vLLM takes them: the first one is a refit without a plan."""
    first, refused = attempts(ask, ("stacked",))
    if refused:
        ask("sync", "bare")  # heals the engine
    result["first"] |= first
    result["refused"] |= refused
    result["samples"] |= syncs(ask, tuple(first), rounds)
    result["faults"] += ask("faults")
