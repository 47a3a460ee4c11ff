"""Part "generation": rollouts of one engine with the model's true shapes, timed; or where their time goes.

Weights are random, of a real model's spread: a GPU's clock depends on the bits that it multiplies. Every prompt and
every answer has the same length, so that a batch stays whole until its end.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks import caches, trace
from benchmarks.floors import Rates, floors
from benchmarks.models import Model
from benchmarks.tasks import Task

INT8, TOKEN = {"num_bits": 8, "type": "int", "symmetric": True}, {"strategy": "token", "dynamic": True}
W8A8 = {  # vLLM's own: what llm-compressor writes for int8 weights and activations
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head", "re:.*mlp.gate$"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**INT8, "strategy": "channel", "dynamic": False},
            "input_activations": {**INT8, **TOKEN},
        }
    },
}
OURS = {"quant_method": "ascend_quant", "scheme": "int8"}
SCHEMES = {
    "bf16": {},
    "int8-vllm": {"quantization": "compressed-tensors", "hf_overrides": {"quantization_config": W8A8}},
    "int8-ours": {"quantization": "ascend_quant", "hf_overrides": {"quantization_config": OURS}},
    "fp8-vllm": {"quantization": "fp8"},
}
SETTINGS = {
    "dtype": "bfloat16",
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "max_num_batched_tokens": 8192,
    "enable_prefix_caching": False,
    "distributed_executor_backend": "mp",  # as verl asks for: one process schedules, another one runs the model
    "worker_extension_cls": "benchmarks.rollout_worker.Extension",
}
WARM_STEPS, TIMED_STEPS, TRACED_STEPS = 8, 32, 10
TRACED_ANSWER = 2 * (WARM_STEPS + TIMED_STEPS + TRACED_STEPS + 2)  # tokens: its second half is traced, and not its end


@contextmanager
def started(task: Task, longest: int) -> Iterator:
    """A vLLM engine with random weights, with CUDA graphs for the batches that are asked for.

    Args:
        longest: tokens of a sequence, prompt and answer.
    """
    from vllm import LLM

    import benchmarks.rollout_worker  # noqa: F401  registers our plugin

    with tempfile.TemporaryDirectory(prefix="model-") as folder:
        task.cut_model().write_config(Path(folder))
        llm = LLM(folder, max_model_len=longest, **options_of(task))
        try:
            llm.collective_rpc("fill_with_random_weights")
            yield llm
        finally:
            llm.llm_engine.engine_core.shutdown()


def options_of(task: Task) -> dict:
    """vLLM's, of an engine."""
    rollouts = task.rollouts
    options = {
        **SETTINGS,
        **caches.options(SCHEMES[task.variant], task.cache),
        "max_num_seqs": max(rollouts.batches),
        "compilation_config": {"cudagraph_capture_sizes": sorted(rollouts.batches)},
    }
    if rollouts.memory is not None:
        options["gpu_memory_utilization"] = rollouts.memory
    if task.device == "cpu":
        options |= {"enforce_eager": True, "kv_cache_memory_bytes": 1 << 28}
    return options


def run(task: Task) -> dict:
    """Seconds of each batch, and with `trace` what a decode step consists of; a trace that says nothing is a fault."""
    start = time.perf_counter()
    with started(task, task.rollouts.prompt + task.rollouts.answer) as llm:
        result = {"startup_s": time.perf_counter() - start, "seconds": {}, "traces": {}, "faults": []}
        rates = Rates(*llm.collective_rpc("rates")[0]) if task.rollouts.trace else None
        for batch in task.rollouts.batches:
            _generate(llm, task, batch, 8)
            result["seconds"][str(batch)] = _generate(llm, task, batch, task.rollouts.answer)
            if task.rollouts.trace:
                try:
                    result["traces"][str(batch)] = _traced(llm, task, batch, rates)
                except ValueError as error:  # the seconds are good for all that
                    result["faults"].append(f"{task.title()}, batch {batch}: {error}")
    return result


def sampling(task: Task, tokens: int, **more):
    """As rollouts are sampled: from the whole distribution."""
    from vllm import SamplingParams

    logprobs = 0 if task.rollouts.logprobs else None
    free = {"temperature": 1.0, "ignore_eos": True, "detokenize": False}
    return SamplingParams(max_tokens=tokens, logprobs=logprobs, **free, **more)


def prompts(model: Model, batch: int, length: int, seed: int = 0) -> list[dict]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, model.vocab, (batch, length), generator=generator)
    return [{"prompt_token_ids": row} for row in ids.tolist()]


def _generate(llm, task: Task, batch: int, tokens: int) -> float:
    """Seconds for a whole batch, its prompts included."""
    asked = prompts(task.cut_model(), batch, task.rollouts.prompt)
    start = time.perf_counter()
    answers = llm.generate(asked, sampling(task, tokens), use_tqdm=False)
    taken = time.perf_counter() - start
    lengths = {len(answer.outputs[0].token_ids) for answer in answers}
    if lengths != {tokens}:
        raise RuntimeError(f"{task.title()}: answers of {sorted(lengths)} tokens, {tokens} were asked for")
    return taken


def _traced(llm, task: Task, batch: int, rates: Rates) -> dict:
    """Decode steps in the middle of an answer: their wall time, then their kernels."""
    from vllm.sampling_params import RequestOutputKind

    engine, rollouts = llm.llm_engine, task.rollouts
    length, more = rollouts.prompt + rollouts.answer // 2, rollouts.answer // 2
    requests = [f"{batch}-{number}" for number in range(batch)]
    for name, prompt in zip(requests, prompts(task.cut_model(), batch, length), strict=True):
        engine.add_request(name, prompt, sampling(task, more, output_kind=RequestOutputKind.FINAL_ONLY))
    first = until(engine, 1) + WARM_STEPS
    until(engine, first)
    start = time.perf_counter()
    last = until(engine, first + TIMED_STEPS)
    step_us = 1e6 * (time.perf_counter() - start) / (last - first)
    llm.collective_rpc("start_recording")
    last = until(engine, last + TRACED_STEPS)
    recorded = llm.collective_rpc("recorded")[0]
    engine.abort_request(requests)  # before the trace may turn out to be a fault: more batches follow
    while engine.has_unfinished_requests():
        engine.step()
    kernels = trace.Trace.of(recorded, task.cut_model())
    context = length + last - TRACED_STEPS // 2
    found = parts(task, batch, context, step_us, kernels, rates)
    return {"context": context, "parts": found, "kernels": kernels.by_name()}


def until(engine, tokens: int) -> int:
    """Go on until every request has so many tokens; how many that are then.

    Looked up, since to hand out every step's answers takes longer than a small model's step.
    """
    while True:
        engine.step()
        states = engine.output_processor.request_states.values()
        least = min(state.detokenizer.num_output_tokens() for state in states)
        if least >= tokens:
            return least


def parts(task, batch: int, context: float, step_us: float, kernels: trace.Trace, rates: Rates) -> list[dict]:
    """The step, the operations in it, and how long the GPU waits, as `rollout_report.Part` has them."""
    least = floors(task.cut_model(), task.variant, batch, context, rates, task.cache)
    shares = kernels.shares()
    found = [
        {"name": name, "us": share.us, "count": share.count, "floor_us": least.get(name)}
        for name, share in shares.items()
    ]
    count = sum(share.count for share in shares.values())
    found.append({"name": "gaps", "us": step_us - kernels.busy_us(), "count": 0, "floor_us": None})
    return [*found, {"name": "step", "us": step_us, "count": count, "floor_us": sum(least.values())}]
