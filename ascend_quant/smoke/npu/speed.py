"""Probes of speed on an NPU: refits beside a plain copy, rollouts beside BF16, in the same run."""

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ascend_quant.kernels import npu
from ascend_quant.kernels.moves import Job, Move
from ascend_quant.smoke.engine import engine_of, generated, need_vllm
from ascend_quant.smoke.npu import data
from ascend_quant.smoke.probes import On, Seen, probe

ROUNDS, ROUND_MS, MOST_CALLS = 5, 30.0, 50
ROOM = 0.7  # share of the free memory
LAYERS, BATCHES, PROMPT, ANSWER = 8, (16, 64), 128, 128  # of a rollout
CONFIG = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "num_hidden_layers": LAYERS,
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


@probe(
    "speed.refit",
    "how long a refit of 7B's layers and of a layer of experts takes, in copies of their BF16",
    ("npu",),
    True,
)
def refit(on: On) -> Seen:
    """As many layers as there is room for; the experts' gate and up projections come by themselves."""
    seen = Seen()
    copied = _random(on, 1 << (14 if on.small else 29))  # far more than a cache holds
    target = torch.empty_like(copied)
    dense, stacks = ([(96, 64)], [(3, 64, 80)]) if on.small else (data.SEVEN_B, data.EXPERTS)
    free = ROOM * torch.npu.mem_get_info(on.device)[0]
    layers = max(1, min(28, int(free / (4 * sum(n * k for n, k in dense)))))
    for name, shapes in ((f"{layers} layers of 7B", dense * layers), ("experts of 30B-A3B", stacks)):
        sources = [_random(on, *shape) for shape in shapes]
        bytes_ = sum(source.nbytes for source in sources)
        jobs = [job for source in sources for job in _jobs(on, source)]
        copy, ms = milliseconds(lambda: target.copy_(copied)), milliseconds(lambda jobs=jobs: _refit(on, jobs))
        seen.values["copy, GB/s read and written"] = bandwidth = 2 * copied.nbytes / copy / 1e6
        seen.values |= {f"{name}, ms": ms, f"{name}, copies": ms * bandwidth * 1e6 / (2 * bytes_)}
    return seen


def _jobs(on: On, source: torch.Tensor) -> list[Job]:
    """One write a matrix; of a stack of experts two a matrix."""
    storage, rows_NK = data.storage(source.shape, True, on), source.flatten(0, -2)
    stand_in, scale_N = torch.empty(rows_NK.shape, dtype=torch.int8, device="meta"), storage.scale.flatten()
    step = source.shape[-2] if source.dim() == 2 else source.shape[-2] // 2
    jobs = []
    for first in range(0, len(rows_NK), step):
        part = slice(first, first + step)
        move = Move.of(rows_NK[part], stand_in[part], scale_N[part], first_row=first, place=storage.place)
        jobs.append(Job.of(move, rows_NK[part]))
    return jobs


def _refit(on: On, jobs: list[Job]) -> None:
    counters = npu.Counters(on.device)
    counters.new_slots()
    npu.write(jobs, counters)
    counters.read()


def milliseconds(call: Callable[[], object]) -> float:
    """Of one call, until the device is idle: the median of rounds of several; what is compiled is so before."""
    calls = max(1, min(MOST_CALLS, int(ROUND_MS / max(_took(call, 1), 1e-3))))
    return median(_took(call, calls) for _ in range(ROUNDS))


def _took(call: Callable[[], object], times: int) -> float:
    """Milliseconds of one of several calls."""
    if times == 1:
        call()
    torch.npu.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        call()
    torch.npu.synchronize()
    return 1e3 * (time.perf_counter() - start) / times


def _random(on: On, *shape: int) -> torch.Tensor:
    """BF16 on the device, drawn there."""
    return torch.empty(shape, dtype=torch.bfloat16, device=on.device).normal_(0, 0.02)


@probe(
    "speed.rollout",
    "tokens a second with int8 beside BF16, of layers of a 7B model with random weights",
    ("npu",),
    True,
    900,
)
def rollout(on: On) -> Seen:
    """The same with vLLM's own graphs."""
    need_vllm(on)
    rates = {scheme: _rates(scheme) for scheme in ("bf16", "int8")}
    seen = Seen({f"int8 over bf16, batch {batch}": rates["int8"][batch] / rates["bf16"][batch] for batch in BATCHES})
    seen.values |= {f"{scheme}, tokens/s by batch": found for scheme, found in rates.items()}
    return seen


def _rates(scheme: str) -> dict[int, float]:
    """Tokens a second of whole answers, prompts and all, by batch."""
    with tempfile.TemporaryDirectory(prefix="aq-smoke-") as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIG))
        more: dict[str, Any] = {
            "load_format": "dummy",
            "max_model_len": PROMPT + ANSWER + 8,
            "max_num_seqs": max(BATCHES),
        }
        with engine_of(Path(folder), scheme, graphs=True, memory=0.5, enable_prefix_caching=False, **more) as llm:
            return {batch: _rate(llm, batch) for batch in BATCHES}


def _rate(llm: Any, batch: int) -> float:
    prompts: Sequence[list[int]] = torch.randint(1000, (batch, PROMPT), generator=data.generator(batch)).tolist()
    generated(llm, prompts, 8)  # what has to be compiled
    begun = time.perf_counter()
    answers = generated(llm, prompts, ANSWER)
    return sum(map(len, answers)) / (time.perf_counter() - begun)
