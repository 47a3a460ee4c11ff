"""Every environment variable a launch sets, in one table: name, value, why. A value the user has set wins."""

import os
from collections.abc import Mapping
from typing import NamedTuple


class Variable(NamedTuple):
    name: str
    value: str
    why: str


STACKS: dict[str, tuple[Variable, ...]] = {
    "cpu": (
        Variable("VERL_PLATFORM", "cpu", "our verl plugin registers a `cpu` platform; verl itself knows cuda and npu"),
        Variable("VERL_ENGINE_DEVICE", "cuda", "verl registers its FSDP engines for cuda and npu only; ours is cuda's"),
        Variable("VLLM_CPU_KVCACHE_SPACE", "1", "GiB of KV cache; vLLM would take a share of the whole memory"),
        Variable("VLLM_CPU_OMP_THREADS_BIND", "nobind", "the trainer and the engine share the same few cores"),
        Variable("OMP_NUM_THREADS", "1", "more threads than cores only wait for each other in a tiny model"),
        Variable("GLOO_SOCKET_IFNAME", "lo", "gloo needs an interface that exists without a network"),
        Variable("HF_HUB_OFFLINE", "1", "the demo makes its own model and downloads nothing"),
        Variable("TRANSFORMERS_OFFLINE", "1", "as above, for transformers"),
        Variable("VLLM_NO_USAGE_STATS", "1", "no usage reports from vLLM"),
        Variable("RAY_USAGE_STATS_ENABLED", "0", "no usage reports from Ray"),
        Variable("TOKENIZERS_PARALLELISM", "false", "processes fork after the tokenizer was used"),
        Variable("PYTHONUNBUFFERED", "1", "the last lines before a crash must reach the log"),
    ),
}


def environment(stack: str, current: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process of this stack: the table, overridden by what the user has set."""
    if stack not in STACKS:
        raise ValueError(f"unknown stack {stack!r}: choose one of {', '.join(STACKS)}")
    defaults = {variable.name: variable.value for variable in STACKS[stack]}
    return {**defaults, **(os.environ if current is None else current)}
