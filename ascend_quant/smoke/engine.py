"""A real vLLM engine, started from one checkpoint and refitted to another, compared with a fresh engine of the second.

The receipt, the bytes read back and the fresh engine's first load must all have the digest that the oracle computes
from the checkpoint; with several ranks, the engines are compared rank by rank. The refitted engine must generate the
same tokens as the fresh one.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ascend_quant import oracle
from ascend_quant.profile.checkpoints import Checkpoint
from ascend_quant.schemes import Scheme, get_scheme
from ascend_quant.smoke.probes import On, Seen, need, probe

SCHEME = "int8"
PROMPTS, PROMPT_TOKENS, TOKENS = 4, 24, 32
BUCKET = 1 << 20  # bytes
MEMORY = 0.3  # fraction of a device's memory, for a model with 5 M parameters
SECONDS = 240.0
DECIDES = "a refitted engine holds the definition's bytes, and answers as a fresh one"
Tokens = list[list[int]]
# Wider than the demo's model, since not every device's attention supports a head size of 32, with weights so large that
# answers differ. Sizes that are split over ranks are divisible by 4.
CONFIG = {
    "vocab_size": 512,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,  # of which 4 ranks hold copies
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": 0,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "head_dim": 128}


def _refitted(name: str, decides: str, devices: tuple[str, ...], limit_s: float = SECONDS, **options: Any) -> None:
    """Register a probe of a refitted engine."""

    @probe(f"engine.{name}", decides, devices, True, limit_s, options.get("ranks", 1))
    def run(on: On) -> Seen:
        return refitted(on, **options)


GPUS_AND_NPUS = ("cuda", "npu")
_refitted("refit", DECIDES, ("cpu", "npu"), SECONDS / 2)
_refitted("graphs", f"{DECIDES}, with graphs that were captured before", GPUS_AND_NPUS, graphs=True)
_refitted("ranks", "each of two ranks holds after a refit what a fresh engine's holds", GPUS_AND_NPUS, ranks=2)
_refitted("experts", "each of four ranks does so with experts dealt out whole", GPUS_AND_NPUS, ranks=4, moe=True)


def refitted(on: On, graphs: bool = False, ranks: int = 1, moe: bool = False) -> Seen:
    """Refit an engine in buckets, and compare it with a fresh one.

    Args:
        graphs: whether the engines capture graphs, as vLLM does by default.
        ranks: number of tensor-parallel ranks, each with its own device.
        moe: whether the model has experts, which are distributed whole over several ranks.

    Raises:
        NotPossible: vLLM is missing.
    """
    need_vllm(on)
    memory = MEMORY if on.checkpoints is None else None
    options = {"graphs": graphs, "memory": memory, "tensor_parallel_size": ranks, "enable_expert_parallel": moe}
    begun = time.monotonic()
    with checkpoints(on, moe) as (start, then):
        prompts = questions(then)
        with engine_of(start, SCHEME, **options) as llm:
            ready = time.monotonic()
            before, first = generated(llm, prompts), asked(llm, "smoke_receipt")
            buckets, *_ = asked(llm, "smoke_refit", str(then), BUCKET)
            answers, receipts = generated(llm, prompts), asked(llm, "smoke_receipt")
            parameters = asked(llm, "smoke_parameters")[0]
        with engine_of(then, SCHEME, **options) as llm:
            fresh, loads = generated(llm, prompts), asked(llm, "smoke_receipt")
        whose = "the definition's" if ranks == 1 else "the fresh engine's"
        expected = [load["digest"] for load in loads]
        if ranks == 1:
            expected = [definition_digest(parameters, Checkpoint(then).tensor, get_scheme(SCHEME))]
    receipt = receipts[0]
    values = {"tensors": receipt["tensors"], "ms": receipt["milliseconds"], "digest": receipt["digest"]}
    values |= {"expected digest": expected[0], "buckets": buckets, "receipt": receipt, "prompts": PROMPTS}
    values |= {"tokens": TOKENS, "other answers than before": sum(map(lambda a, b: a != b, before, answers))}
    values |= {"start, s": round(ready - begun, 1)}
    problems = digest_problems(first, receipts, loads, expected, whose)
    return Seen(values, [*problems, *token_problems(answers, fresh)])


def definition_digest(parameters: Sequence[dict], read: Callable[[str], torch.Tensor], scheme: Scheme) -> str:
    """Return the digest that a receipt must have, 16 hex digits, computed by the oracle from a checkpoint's values.

    The engine only tells which checkpoint tensors its parameters contain, in which order. One rank has all of them.

    Args:
        parameters: result of `worker.Extension.smoke_parameters`.
        read: returns a tensor of the checkpoint by name.
        scheme: a scheme with one scale per row.
    """
    found, weights = [], []
    for one in parameters:
        values = torch.cat([oracle.as_matrix(read(part)) for part in one["parts"]])
        if one["quantized"]:
            codes, scale = oracle.quantize(values, scheme)
            found += [oracle.digest(codes), oracle.digest(scale)]
            weights += [one["weight"], 3 * one["weight"]]
        else:
            found.append(oracle.digest(values.to(getattr(torch, one["dtype"]))))
            weights.append(one["weight"])
    return f"{oracle.add_digests(*found, weights=weights):016x}"


def digest_problems(
    first: Sequence[dict], receipts: Sequence[dict], loads: Sequence[dict], expected: Sequence[str], whose: str
) -> list[str]:
    """Return the problems with each rank's digests: first load, refit, and the fresh engine's load."""
    problems = []
    for rank, (before, receipt, load, wanted) in enumerate(zip(first, receipts, loads, expected, strict=True)):
        found = {
            "the receipt's": receipt["digest"],
            "that of the bytes read back": receipt["read_back"],
            "the fresh engine's": load["digest"],
        }
        of_rank = f"rank {rank}: " if len(first) > 1 else ""
        problems += [
            f"{of_rank}digest {one}: {value}, {whose} {wanted}" for one, value in found.items() if value != wanted
        ]
        if receipt["number"] == before["number"]:
            problems.append(f"{of_rank}the engine counted no refit")
        if before["digest"] == wanted:
            problems.append(
                f"{of_rank}both checkpoints have the same digest, so nothing was tested; give two that differ"
            )
    return problems


def token_problems(answers: Tokens, fresh: Tokens) -> list[str]:
    """Return the prompts that the refitted engine answers differently from a fresh one, or not at full length."""
    problems = []
    for number, (ours, theirs) in enumerate(zip(answers, fresh, strict=True), start=1):
        if len(ours) != TOKENS or len(theirs) != TOKENS:
            problems.append(f"prompt {number}: {len(ours)} and {len(theirs)} tokens where {TOKENS} were asked for")
        elif ours != theirs:
            at = next(i for i in range(TOKENS) if ours[i] != theirs[i])
            problems.append(f"prompt {number}: token {at + 1} is {ours[at]}, the fresh engine's {theirs[at]}")
    return problems


def need_vllm(on: On) -> None:
    """Raise NotPossible unless an engine can be started; set vLLM's environment variables."""
    need("vllm", "transformers", "safetensors", *(("vllm_ascend", "acl") if on.device.type == "npu" else ()))
    if on.device.type == "npu":
        os.environ.setdefault("VLLM_ASCEND_ENABLE_NZ", "0")  # verl's setting
    if on.device.type == "cpu":  # a separate engine process would import vLLM again, on the same few cores
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


@contextmanager
def checkpoints(on: On, moe: bool = False) -> Iterator[tuple[Path, Path]]:
    """Yield the given checkpoints, or small ones that exist inside the block."""
    if on.checkpoints is not None:
        yield on.checkpoints
        return
    with tempfile.TemporaryDirectory(prefix="aq-smoke-") as made:
        yield write_models(Path(made), moe)


def questions(folder: Path) -> Tokens:
    """Return prompts of random token ids from the model's vocabulary."""
    vocabulary = Checkpoint(folder).config["vocab_size"]
    return torch.randint(
        vocabulary, (PROMPTS, PROMPT_TOKENS), generator=torch.Generator("cpu").manual_seed(0), device="cpu"
    ).tolist()


@contextmanager
def engine_of(
    folder: Path, scheme: str, graphs: bool = False, memory: float | None = None, **more: Any
) -> Iterator[Any]:
    """Context with a vLLM engine, which is shut down at the end.

    Args:
        memory: gpu_memory_utilization; None for vLLM's default.
    """
    from vllm import LLM

    from ascend_quant.integrations.vllm import register

    register()
    options: dict[str, Any] = {
        "dtype": "bfloat16",
        "skip_tokenizer_init": True,
        "enforce_eager": not graphs,
        "max_model_len": PROMPT_TOKENS + TOKENS + 8,
        "max_num_seqs": 2 * PROMPTS,
        "worker_extension_cls": "ascend_quant.smoke.worker.Extension",
        "seed": 0,
    }
    if scheme != "bf16":
        config = {"quant_method": "ascend_quant", "scheme": scheme}
        options |= {"quantization": "ascend_quant", "hf_overrides": {"quantization_config": config}}
    if memory is not None:
        options["gpu_memory_utilization"] = memory
    llm = LLM(str(folder), **options | more)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


def generated(llm: Any, prompts: Sequence[list[int]], tokens: int = TOKENS) -> Tokens:
    """Return the greedy answer to each prompt."""
    from vllm import SamplingParams

    wanted = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    answers = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], wanted, use_tqdm=False)
    return [list(answer.outputs[0].token_ids) for answer in answers]


def asked(llm: Any, method: str, *args: Any) -> list[Any]:
    """Return the answers of the engine's workers, by rank."""
    return llm.collective_rpc(method, args=args)


def write_models(folder: Path, moe: bool = False) -> tuple[Path, Path]:
    """Write FOLDER/start and FOLDER/then, two consecutive training steps in BF16; the bytes are always the same."""
    from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3MoeConfig

    config = Qwen3MoeConfig(**CONFIG, **EXPERTS) if moe else Qwen2Config(**CONFIG)
    for seed, name in enumerate(("start", "then")):
        torch.manual_seed(seed)
        with torch.device("cpu"):
            model = AutoModelForCausalLM.from_config(config)
        model.to(torch.bfloat16).save_pretrained(folder / name)
    return folder / "start", folder / "then"
