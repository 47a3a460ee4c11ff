"""Part "graphs": what an engine with captured CUDA graphs generates after a refit.

Graphs alone are compared with an eager engine. Compiled code rounds otherwise than eager code, so a compiled engine
is compared with one that was started anew on a checkpoint of the same weights, before any refit: every token. Inductor
times some of its kernels and keeps the fastest, among them one whose sums run in another order: of models that norm q
and k, engines that are started anew differ, in plain BF16 too (benchmarks/results/2026-11-23-h200-inductor.md). So
these two choose by rule. One that is compiled as vLLM does by default is compared with itself: after other weights and
then the first ones were refitted into it, it must give its first answers again, bit by bit.
"""

import torch

from benchmarks.engine import started
from benchmarks.models import Model
from benchmarks.tasks import Task

# Inductor's deterministic mode refuses to time combo kernels, as vLLM asks for where nothing is said of them.
BY_RULE = {"inductor_compile_config": {"deterministic": True, "benchmark_combo_kernel": False}}
WAYS = {
    "eager": {},
    "graphs": {
        "enforce_eager": False,
        "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
    },
    "started anew": {"enforce_eager": False, "compilation_config": BY_RULE},
    "compiled": {"enforce_eager": False, "compilation_config": BY_RULE},
    "by default": {"enforce_eager": False},
}
STARTED_ON_WEIGHTS = ("started anew", "by default")
REFERENCES = {"graphs": "eager", "compiled": "started anew"}
PROMPTS, LENGTH, ANSWER = 16, 32, 8
TOLERANCE = 0.02  # nats: log-probabilities come from BF16 logits
SEEDS = (2, 3)


def run(task: Task) -> dict:
    """Generate with two sets of weights, refitted into one engine; or with the second, which it was started on."""
    from vllm.compilation.counter import compilation_counter

    anew = task.variant in STARTED_ON_WEIGHTS
    with started(task, task.scheme, seed=SEEDS[-1] if anew else None, **WAYS[task.variant]) as llm:
        first = _answers(llm, task) if anew else None
        answers = []
        for seed in SEEDS:
            llm.collective_rpc("bench", args=("draw", seed))
            llm.collective_rpc("bench", args=("sync", "bare", False))
            answers.append(_answers(llm, task))
        faults = llm.collective_rpc("bench", args=("faults",))[0]
        captured = compilation_counter.num_cudagraph_captured
    if task.device == "cuda" and bool(captured) is (task.variant == "eager"):
        faults.append(f"{task.variant}: vLLM captured {captured} CUDA graphs")
    faults += unchanged(answers)
    if first is not None:
        faults += unlike(first, answers[-1])
        answers = [first]
    return {"answers": answers, "captured": captured, "faults": faults}


def _answers(llm, task: Task) -> list[list[dict]]:
    from vllm import SamplingParams

    wanted = SamplingParams(max_tokens=ANSWER, temperature=0, logprobs=2, ignore_eos=True, detokenize=False)
    return [_answer(request) for request in llm.generate(prompts(task.cut_model()), wanted, use_tqdm=False)]


def prompts(model: Model) -> list[dict]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, model.vocab, (PROMPTS, LENGTH), generator=generator)
    return [{"prompt_token_ids": row} for row in ids.tolist()]


def _answer(request) -> list[dict]:
    """Each token with its log-probability, and how far the second best is behind."""
    output = request.outputs[0]
    steps = []
    for token, seen in zip(output.token_ids, output.logprobs, strict=True):
        best, second = sorted((entry.logprob for entry in seen.values()), reverse=True)[:2]
        steps.append({"token": token, "logprob": seen[token].logprob, "gap": best - second})
    return steps


def unchanged(answers: list[list[list[dict]]]) -> list[str]:
    """If a refit left answers as they were before."""
    before, after = ([[step["token"] for step in answer] for answer in weights] for weights in answers)
    same = sum(a == b for a, b in zip(before, after, strict=True))
    return [f"{same} of {PROMPTS} answers did not change with the weights"] if same else []


def unlike(first: list[list[dict]], again: list[list[dict]]) -> list[str]:
    """In what an engine's answers after refits differ from its first ones, with the same weights: any bit."""
    faults = []
    for prompt, (one, two) in enumerate(zip(first, again, strict=True)):
        step = next((step for step, (a, b) in enumerate(zip(one, two, strict=True)) if a != b), None)
        if step is not None:
            faults.append(f"after refits, prompt {prompt}, token {step}: {two[step]} instead of {one[step]}")
    return faults


def differences(reference: dict, other: dict) -> list[str]:
    """In what an engine's last answers differ from the reference's.

    Where the two best tokens are closer than the tolerance, either may be chosen, but by an engine with the same
    compiled code (which has its last answers alone): there the answer is followed no further.
    """
    faults, exact = [], len(reference["answers"]) < len(other["answers"])
    for number, expected, answers in _pairs(reference, other):
        followed = 0
        for prompt, (one, two) in enumerate(zip(expected, answers, strict=True)):
            for step, (a, b) in enumerate(zip(one, two, strict=True)):
                place = f"weights {number}, prompt {prompt}, token {step}"
                if a["token"] != b["token"]:
                    if exact or a["gap"] > 2 * TOLERANCE:
                        faults.append(f"{place}: {b['token']} instead of {a['token']}")
                    break
                if not abs(a["logprob"] - b["logprob"]) <= TOLERANCE:
                    faults.append(f"{place}: log-probability {b['logprob']:.3f} instead of {a['logprob']:.3f}")
                followed += 1
        if 2 * followed < PROMPTS * ANSWER:
            faults.append(f"weights {number}: only {followed} of {PROMPTS * ANSWER} tokens could be compared")
    return faults


def largest_difference(reference: dict, other: dict) -> float:
    """Of the log-probabilities of first tokens, in nats."""
    pairs = (pair for _, one, two in _pairs(reference, other) for pair in zip(one, two, strict=True))
    return max(abs(a[0]["logprob"] - b[0]["logprob"]) for a, b in pairs)


def _pairs(reference: dict, other: dict) -> list[tuple[int, list, list]]:
    """Which weights, the reference's answers and the other's: an engine that was started anew knows the last alone."""
    first = len(other["answers"]) - len(reference["answers"])
    numbers = range(first + 1, len(other["answers"]) + 1)
    return list(zip(numbers, reference["answers"], other["answers"][first:], strict=True))
