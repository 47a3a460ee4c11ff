"""A real vLLM engine, started from one checkpoint and refitted to another, beside a fresh engine of that.

Two questions. Do the receipt, the bytes read back and the fresh engine's first load all have the digest that the oracle
computes from the checkpoint? Of several ranks, which hold a share each: are they alike, rank by rank? And does the
refitted engine generate the tokens that the fresh one generates?
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ascend_quant.schemes import get_scheme
from ascend_quant.selfcheck.expected import Parameter, digest, reader
from ascend_quant.selfcheck.given import vocabulary_of

SCHEME = "int8"
PROMPTS, PROMPT_TOKENS, TOKENS = 4, 24, 32
BUCKET = 1 << 20  # bytes
Tokens = list[list[int]]


@dataclass(frozen=True)
class Engines:
    """How both engines are started.

    Attributes:
        graphs: whether they capture graphs, as vLLM does by default; they must follow the refit.
        memory: gpu_memory_utilization; None for vLLM's default.
        ranks: tensor-parallel, each with a device of its own.
        experts_apart: experts are dealt out whole among them, not in slices.
    """

    graphs: bool = False
    memory: float | None = None
    ranks: int = 1
    experts_apart: bool = False


def check_engine(start: Path, then: Path, engines: Engines) -> dict[str, Any]:
    """What was found, as `ascend-quant check-engine --json` writes it; the receipt is the first rank's.

    Args:
        start, then: folders of two checkpoints of one model, BF16, safetensors.
    """
    begun, prompts = time.monotonic(), questions(then)
    with started(start, engines) as llm:
        ready = time.monotonic()
        before, first = generated(llm, prompts), asked(llm, "selfcheck_receipt")
        buckets, *_ = asked(llm, "selfcheck_refit", str(then), BUCKET)
        refitted, receipts = generated(llm, prompts), asked(llm, "selfcheck_receipt")
        parameters = [Parameter(**one) for one in asked(llm, "selfcheck_parameters")[0]]
    refit_end = time.monotonic()
    with started(then, engines) as llm:
        fresh, loads = generated(llm, prompts), asked(llm, "selfcheck_receipt")
    if engines.ranks == 1:
        expected = [digest(parameters, reader(then), get_scheme(SCHEME))]
        problems = refit_problems(first[0], receipts[0], loads[0], expected[0])
    else:
        expected, problems = [load["digest"] for load in loads], rank_problems(first, receipts, loads)
    return {
        "scheme": SCHEME,
        "graphs": engines.graphs,
        "ranks": engines.ranks,
        "experts_apart": engines.experts_apart,
        "machine": machine(),
        "refit": {
            "problems": problems,
            "expected_digest": expected[0],
            "buckets": buckets,
            "receipt": receipts[0],
            "seconds": round(refit_end - begun, 1),
            "start_seconds": round(ready - begun, 1),
        },
        "generate": {
            "problems": token_problems(refitted, fresh),
            "prompts": PROMPTS,
            "tokens": TOKENS,
            "other_than_before": sum(a != b for a, b in zip(before, refitted, strict=True)),
            "seconds": round(time.monotonic() - refit_end, 1),
        },
    }


def rank_problems(first: Sequence[dict], receipts: Sequence[dict], loads: Sequence[dict]) -> list[str]:
    """The same of each rank of several, beside the fresh engine's: the oracle knows no rank's share."""
    ranks = enumerate(zip(first, receipts, loads, strict=True))
    return [
        f"rank {rank}: {problem}"
        for rank, (before, receipt, load) in ranks
        for problem in refit_problems(before, receipt, load, load["digest"], whose="the fresh engine's")
    ]


def refit_problems(first: dict, receipt: dict, load: dict, expected: str, whose: str = "by the oracle") -> list[str]:
    """What is wrong with the digests: of the first load, the refit, and the fresh engine's load."""
    found = {
        "the receipt's": receipt["digest"],
        "that of the bytes read back": receipt["read_back"],
        "the fresh engine's": load["digest"],
    }
    problems = [f"digest {one}: {value}, {whose} {expected}" for one, value in found.items() if value != expected]
    if receipt["number"] == first["number"]:
        problems.append("the engine counted no refit")
    if first["digest"] == expected:
        problems.append("both checkpoints have the same digest: nothing was tried; give two that differ")
    return problems


def token_problems(refitted: Tokens, fresh: Tokens) -> list[str]:
    """Prompts that the refitted engine answers otherwise than a fresh one, or not at full length."""
    problems = []
    for number, (ours, theirs) in enumerate(zip(refitted, fresh, strict=True), start=1):
        if len(ours) != TOKENS or len(theirs) != TOKENS:
            problems.append(f"prompt {number}: {len(ours)} and {len(theirs)} tokens where {TOKENS} were asked for")
        elif ours != theirs:
            at = next(i for i in range(TOKENS) if ours[i] != theirs[i])
            problems.append(f"prompt {number}: token {at + 1} is {ours[at]}, the fresh engine's {theirs[at]}")
    return problems


def questions(folder: Path) -> Tokens:
    """Prompts of random token ids that the model knows."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocabulary_of(folder), (PROMPTS, PROMPT_TOKENS), generator=generator).tolist()


@contextmanager
def started(folder: Path, engines: Engines) -> Iterator[Any]:
    """A vLLM engine that has ended when the block ends."""
    from vllm import LLM

    from ascend_quant.integrations.vllm import register

    register()
    llm = LLM(
        str(folder),
        dtype="bfloat16",
        quantization="ascend_quant",
        hf_overrides={"quantization_config": {"quant_method": "ascend_quant", "scheme": SCHEME}},
        skip_tokenizer_init=True,
        enforce_eager=not engines.graphs,
        tensor_parallel_size=engines.ranks,
        enable_expert_parallel=engines.experts_apart,
        max_model_len=PROMPT_TOKENS + TOKENS + 8,
        max_num_seqs=2 * PROMPTS,
        worker_extension_cls="ascend_quant.selfcheck.worker.Extension",
        seed=0,
        **({} if engines.memory is None else {"gpu_memory_utilization": engines.memory}),
    )
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


def generated(llm: Any, prompts: Sequence[list[int]]) -> Tokens:
    """The greedy answer to each prompt."""
    from vllm import SamplingParams

    wanted = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    answers = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], wanted, use_tqdm=False)
    return [list(answer.outputs[0].token_ids) for answer in answers]


def asked(llm: Any, method: str, *args: Any) -> list[Any]:
    """What the engine's workers answer, by rank."""
    return llm.collective_rpc(method, args=args)


def machine() -> dict[str, str]:
    """What was tried."""
    from vllm import __version__
    from vllm.platforms import current_platform

    return {"device": current_platform.get_device_name(), "vllm": __version__, "torch": torch.__version__}
