"""Real vLLM engines in the test's own process, and ways to look inside."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from vllm import LLM, SamplingParams

from ascend_quant.integrations.vllm import refit_of
from ascend_quant.refit import Check

# a gated delta net's state: vLLM's CPU kernels know no other dtype, and its platform sets it only where there is AMX
FLOAT_STATE = {"mamba_ssm_cache_dtype": "float32"}


@contextmanager
def engine(folder: Path, scheme: str = "int8", **options) -> Iterator[LLM]:
    """An engine that is gone when the block ends."""
    quantization = {"quant_method": "ascend_quant", "scheme": scheme, **options.pop("quantization_config", {})}
    settings = {
        "dtype": "bfloat16",
        "enforce_eager": True,
        "max_model_len": 64,
        "max_num_seqs": 16,
        "quantization": "ascend_quant",
        "hf_overrides": {"quantization_config": quantization},
        **FLOAT_STATE,
        **options,
    }
    llm = LLM(str(folder), **settings)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def worker_of(llm: LLM):
    return llm.llm_engine.model_executor.driver_worker.worker


def model_of(llm: LLM) -> torch.nn.Module:
    return worker_of(llm).model_runner.model


def refit(llm: LLM):
    return refit_of(model_of(llm))


def check_of(llm: LLM, kind: type[Check]) -> Check | None:
    """The refit's check of a kind, such as `KvScales`."""
    return next((one for one in refit(llm).checks if isinstance(one, kind)), None)


def send(llm: LLM, state: dict[str, torch.Tensor]) -> None:
    """A whole refit, the tensors all at once."""
    with refit(llm).session():
        model_of(llm).load_weights(list(state.items()))


def push(llm: LLM, state: dict[str, torch.Tensor]):
    """A whole refit in verl's buckets; its receipt."""
    with refit(llm).session():
        for bucket in buckets(state):
            model_of(llm).load_weights(bucket)
    return refit(llm).last_receipt


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """The mean magnitude of a difference."""
    return (a - b).abs().mean().item()


def post_load_pass(llm: LLM) -> None:
    """What verl calls after every sync."""
    from vllm.model_executor.model_loader.utils import process_weights_after_loading

    runner = worker_of(llm).model_runner
    process_weights_after_loading(runner.model, runner.model_config, torch.device("cpu"))


def resident(llm: LLM) -> dict[str, torch.Tensor]:
    """Copies of all resident tensors, experts under their layer's name; fp8 codes as bytes."""
    parameters = model_of(llm).named_parameters()
    return {name.replace(".routed_experts", ""): as_bytes(p.detach().clone()) for name, p in parameters}


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int8) if tensor.dtype == torch.float8_e4m3fn else tensor


def addresses(llm: LLM) -> dict[str, tuple]:
    return {
        name: (parameter.data_ptr(), parameter.shape, parameter.stride(), parameter.dtype)
        for name, parameter in model_of(llm).named_parameters()
    }


def differing(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> list[str]:
    """Names whose bytes differ; a vocabulary may be padded with zero rows."""
    assert a.keys() == b.keys(), sorted(a.keys() ^ b.keys())
    return [name for name in a if not _same(a[name], b[name])]


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape and a.shape[1:] == b.shape[1:]:
        longer, rows = (a, b.shape[0]) if len(a) > len(b) else (b, a.shape[0])
        return not longer[rows:].any() and torch.equal(a[:rows], b[:rows])
    return a.dtype == b.dtype and torch.equal(a, b)


def prompts(count: int = 12, length: int = 40) -> list[dict]:
    generator = torch.Generator().manual_seed(7)
    return [{"prompt_token_ids": torch.randint(2, 60, (length,), generator=generator).tolist()} for _ in range(count)]


def logprobs(llm: LLM) -> torch.Tensor:
    """The log-probability of every prompt token but the first, of all `prompts()`."""
    asked = prompts()
    answers = llm.generate(asked, SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0), use_tqdm=False)
    assert len(answers) == len(asked)
    return torch.tensor(
        [
            step[token].logprob
            for prompt, answer in zip(asked, answers, strict=True)
            for token, step in zip(prompt["prompt_token_ids"], answer.prompt_logprobs, strict=True)
            if step is not None
        ],
        dtype=torch.float64,
    )


def buckets(state: dict[str, torch.Tensor], limit: int = 1 << 20) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """As verl sends them: views of one buffer that is overwritten by the next bucket."""
    buffer = torch.empty(max(limit, *(tensor.nbytes for tensor in state.values())), dtype=torch.uint8)
    bucket, offset = [], 0
    for name, tensor in state.items():
        if offset + tensor.nbytes > buffer.numel():
            yield bucket
            bucket, offset = [], 0
            buffer.fill_(0x7F)
        view = buffer[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        view.copy_(tensor)
        bucket.append((name, view))
        offset += -(-tensor.nbytes // 64) * 64
    yield bucket
    buffer.fill_(0x7F)
