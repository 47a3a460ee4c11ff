"""Part "decoding": decode steps of one engine at long contexts, sequences of different lengths, timed.

As RL has them: the sequences of a batch are at different places of their answers. Lengths lie evenly from half of the
context to one and a half of it (less where the model has no such positions), in an order drawn by a fixed seed, so that
their mean is the context. Steps are timed in rounds after all prompts are in the cache; what does not fit is not timed.
"""

import time
from random import Random
from statistics import median

from benchmarks import generation, trace
from benchmarks.caches import capacity
from benchmarks.floors import Rates
from benchmarks.generation import TRACED_STEPS, WARM_STEPS, parts, prompts, sampling, started, until
from benchmarks.tasks import Task

ROUNDS, STEPS = 3, 32
PREFILLED = generation.SETTINGS["max_num_batched_tokens"]  # tokens a step, during which the first ones decode already


def run(task: Task) -> dict:
    """Of each context and batch: seconds of a step by round, the mean context, and how many sequences would fit."""
    rollouts, start = task.rollouts, time.perf_counter()
    longest = max(max(lengths(task, context, batch)) + steps(context, batch) for context, batch in pairs(task))
    with started(task, longest) as llm:
        held = capacity(llm.llm_engine.vllm_config.cache_config)
        result = {"startup_s": time.perf_counter() - start, "capacity": held}
        rates = Rates(*llm.collective_rpc("rates")[0]) if rollouts.trace else None
        result["decoding"], result["faults"] = [], []
        for context, batch in pairs(task):
            found = {"context": context, "batch": batch, "fits": held // context}
            asked = lengths(task, context, batch)
            if sum(asked) + batch * steps(context, batch) <= held:
                try:
                    found |= _decoded(llm, task, asked, steps(context, batch), rates)
                except ValueError as error:  # of a trace that says nothing
                    result["faults"].append(f"{task.title()}, {context} tokens, batch {batch}: {error}")
            result["decoding"].append(found)
    return result


def pairs(task: Task) -> list[tuple[int, int]]:
    """Contexts and batches, all with all."""
    return [(context, batch) for context in task.rollouts.contexts for batch in task.rollouts.batches]


def steps(context: int, batch: int) -> int:
    """Tokens that a sequence may decode: while others' prompts are computed, to warm up, in the rounds, traced."""
    return -(-2 * context * batch // PREFILLED) + 2 * WARM_STEPS + ROUNDS * STEPS + TRACED_STEPS + 2


def lengths(task: Task, context: int, batch: int) -> list[int]:
    """Tokens of each prompt.

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


def _decoded(llm, task: Task, asked: list[int], more: int, rates: Rates | None) -> dict:
    """The figures of one context and batch."""
    from vllm.sampling_params import RequestOutputKind

    engine, batch = llm.llm_engine, len(asked)
    requests = [f"{batch}-{length}-{number}" for number, length in enumerate(asked)]
    model = task.cut_model()
    for number, (name, length) in enumerate(zip(requests, asked, strict=True)):
        prompt = prompts(model, 1, length, seed=number)[0]
        engine.add_request(name, prompt, sampling(task, more, output_kind=RequestOutputKind.FINAL_ONLY))
    try:
        last = until(engine, until(engine, 1) + WARM_STEPS)
        found, seconds = {"lengths": asked}, []
        first = _written(engine)
        for _ in range(ROUNDS):
            start, before = time.perf_counter(), last
            last = until(engine, last + STEPS)
            seconds.append((time.perf_counter() - start) / (last - before))
        if len(engine.output_processor.request_states) < batch:
            raise RuntimeError(f"{task.title()}: of {batch} sequences some ended while steps were timed")
        found |= {"step_s": seconds, "mean_context": (sum(asked) + (first + _written(engine)) / 2) / batch}
        if rates is not None:
            llm.collective_rpc("start_recording")
            until(engine, last + TRACED_STEPS)
            recorded = llm.collective_rpc("recorded")[0]
            kernels = trace.Trace.of(recorded, model)
            step_us, context = 1e6 * median(seconds), (sum(asked) + _written(engine)) / batch
            told = parts(task, batch, context, step_us, kernels, rates)
            found["trace"] = {"parts": told, "kernels": kernels.by_name()}
        return found
    finally:
        engine.abort_request(requests)
        while engine.has_unfinished_requests():
            engine.step()


def _written(engine) -> int:
    """Tokens that all requests have decoded."""
    return sum(state.detokenizer.num_output_tokens() for state in engine.output_processor.request_states.values())
