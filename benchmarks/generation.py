"""Part "generation": rollouts of one engine with the model's true shapes, timed: whole answers, or decode steps.

Weights are random, of a real model's spread: a GPU's clock depends on the bits that it multiplies. Whole answers: every
prompt and every answer has the same length, so that a batch stays whole until its end.

Decode steps at long contexts: as RL has them, the sequences of a batch are at different places of their answers. They
are evenly from half of the context to one and a half of it long (less where the model has no such positions), in an
order drawn by a fixed seed, so that their mean is the context; rounds begin when all prompts are in the cache. What
does not fit is not timed.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import torch

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
CACHES = {  # of keys and values: BF16, ours, vLLM's own
    "auto": {},
    "int8": {"kv_cache": "int8"},  # this plugin's option, beside the scheme's
    "fp8": {"kv_cache": "fp8"},
    "int8-vllm": {"kv_cache_dtype": "int8_per_token_head"},
    "fp8-vllm": {"kv_cache_dtype": "fp8"},
}
OUR_CACHES = ("int8", "fp8")
SETTINGS = {
    "dtype": "bfloat16",
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "max_num_batched_tokens": 8192,
    "enable_prefix_caching": False,
    "distributed_executor_backend": "mp",  # as verl asks for: one process schedules, another one runs the model
    "worker_extension_cls": "benchmarks.rollout_worker.Extension",
}
PREFILLED = SETTINGS["max_num_batched_tokens"]  # tokens a step, during which the first ones decode already
WARM_STEPS, ROUNDS, STEPS = 8, 3, 32


def run(task: Task) -> dict:
    """Measure each batch (and context, if any): tokens a second, one a round, and how many sequences would fit."""
    places = pairs(task)
    longest = max((max(lengths(task, *place)) + steps(*place) for place in places), default=0)
    with started(task, longest or task.rollouts.prompt + task.rollouts.answer) as llm:
        if not places:
            return {
                "measured": [{"batch": batch, "rates": _answered(llm, task, batch)} for batch in task.rollouts.batches]
            }
        held = capacity(llm.llm_engine.vllm_config.cache_config)
        return {"measured": [_decoded(llm, task, held, *place) for place in places]}


@contextmanager
def started(task: Task, longest: int) -> Iterator:
    """Start a vLLM engine with random weights, with CUDA graphs for the batches that are asked for.

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
    """Return vLLM's options of an engine."""
    rollouts = task.rollouts
    options = {
        **SETTINGS,
        **with_cache(SCHEMES[task.scheme], task.cache),
        "max_num_seqs": max(rollouts.batches),
        "compilation_config": {"cudagraph_capture_sizes": sorted(rollouts.batches)},
    }
    if rollouts.memory is not None:
        options["gpu_memory_utilization"] = rollouts.memory
    if task.device == "cpu":
        options |= {"enforce_eager": True, "kv_cache_memory_bytes": 1 << 28}
    return options


def with_cache(scheme: dict, cache: str) -> dict:
    """Return vLLM's options for a scheme with that KV cache.

    Raises:
        ValueError: one of our caches for an engine that is not ours.
    """
    if cache not in OUR_CACHES:
        return {**scheme, **CACHES[cache]}
    if not scheme:  # BF16, which this plugin serves too
        scheme = {"quantization": "ascend_quant", "hf_overrides": {"quantization_config": OURS | {"scheme": "bf16"}}}
    if scheme["quantization"] != "ascend_quant":
        raise ValueError(f"the cache {cache} is this plugin's, and {scheme['quantization']} is not: take {cache}-vllm")
    ours = scheme["hf_overrides"]["quantization_config"] | CACHES[cache]
    return scheme | {"hf_overrides": {"quantization_config": ours}}


def capacity(cache_config) -> int:
    """Return the number of tokens that an engine's KV cache holds."""
    return cache_config.num_gpu_blocks * cache_config.block_size


def sampling(tokens: int, **more):
    """Return sampling parameters as rollouts have them: from the whole distribution."""
    from vllm import SamplingParams

    return SamplingParams(max_tokens=tokens, temperature=1.0, ignore_eos=True, detokenize=False, **more)


def prompts(model: Model, batch: int, length: int, seed: int = 0) -> list[dict]:
    """Generate prompts of random token ids."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, model.vocab, (batch, length), generator=generator)
    return [{"prompt_token_ids": row} for row in ids.tolist()]


def _answered(llm, task: Task, batch: int) -> list[float]:
    """Measure the tokens a second of a whole batch, its prompts (prefill) included."""
    asked, tokens = prompts(task.cut_model(), batch, task.rollouts.prompt), task.rollouts.answer
    llm.generate(asked, sampling(WARM_STEPS), use_tqdm=False)
    start = time.perf_counter()
    answers = llm.generate(asked, sampling(tokens), use_tqdm=False)
    taken = time.perf_counter() - start
    found = {len(answer.outputs[0].token_ids) for answer in answers}
    if found != {tokens}:
        raise RuntimeError(f"{task.title()}: answers of {sorted(found)} tokens, {tokens} were asked for")
    return [batch * tokens / taken]


def pairs(task: Task) -> list[tuple[int, int]]:
    """List all pairs of contexts and batches."""
    return [(context, batch) for context in task.rollouts.contexts for batch in task.rollouts.batches]


def steps(context: int, batch: int) -> int:
    """Return the tokens that a sequence may decode: while others' prompts are computed, to warm up, in the rounds."""
    return -(-2 * context * batch // PREFILLED) + 2 * WARM_STEPS + ROUNDS * STEPS + 2


def lengths(task: Task, context: int, batch: int) -> list[int]:
    """Return the tokens of each prompt.

    Raises:
        ValueError: the model has not so many positions.
    """
    room = task.cut_model().positions - context - steps(context, batch)
    if room < 0:
        raise ValueError(f"{task.model} has {task.cut_model().positions} positions, fewer than {context} and the steps")
    spread = min(context // 2, room)
    found = [context - spread + (2 * spread * place) // max(1, batch - 1) for place in range(batch)]
    Random(0).shuffle(found)
    return found if batch > 1 else [context]


def _decoded(llm, task: Task, held: int, context: int, batch: int) -> dict:
    """Measure the decode steps of one context and batch; no rates where it does not fit."""
    from vllm.sampling_params import RequestOutputKind

    asked, more = lengths(task, context, batch), steps(context, batch)
    found = {"context": context, "batch": batch, "fits": held // context, "rates": []}
    if sum(asked) + batch * more > held:
        return found
    engine, model = llm.llm_engine, task.cut_model()
    requests = [f"{batch}-{length}-{number}" for number, length in enumerate(asked)]
    for number, (name, length) in enumerate(zip(requests, asked, strict=True)):
        prompt = prompts(model, 1, length, seed=number)[0]
        engine.add_request(name, prompt, sampling(more, output_kind=RequestOutputKind.FINAL_ONLY))
    try:
        last, first = until(engine, until(engine, 1) + WARM_STEPS), _written(engine)
        for _ in range(ROUNDS):
            start, before = time.perf_counter(), last
            last = until(engine, last + STEPS)
            found["rates"].append(batch * (last - before) / (time.perf_counter() - start))
        if len(engine.output_processor.request_states) < batch:
            raise RuntimeError(f"{task.title()}: of {batch} sequences some ended while steps were timed")
        return found | {"mean_context": (sum(asked) + (first + _written(engine)) / 2) / batch}
    finally:
        engine.abort_request(requests)
        while engine.has_unfinished_requests():
            engine.step()


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


def _written(engine) -> int:
    """Return the tokens that all requests have decoded."""
    return sum(state.detokenizer.num_output_tokens() for state in engine.output_processor.request_states.values())
