"""Part "graphs": what an engine with captured CUDA graphs generates after a refit, against one that captured none.

Compiled code rounds otherwise than eager code, so a compiled engine with graphs is compared with one without.
"""

import torch

from benchmarks.engine import started
from benchmarks.models import Model
from benchmarks.tasks import Task

WAYS = {
    "eager": {},
    "graphs": {
        "enforce_eager": False,
        "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
    },
    "compiled alone": {"enforce_eager": False, "compilation_config": {"cudagraph_mode": "NONE"}},
    "compiled": {"enforce_eager": False},  # vLLM's default: torch.compile and graphs
}
REFERENCES = {"graphs": "eager", "compiled": "compiled alone"}
PROMPTS, LENGTH, ANSWER = 16, 32, 8
TOLERANCE = 0.02  # nats: log-probabilities come from BF16 logits
SEEDS = (2, 3)


def run(task: Task) -> dict:
    """Generate with two sets of weights, both refitted into the same engine."""
    from vllm import SamplingParams
    from vllm.compilation.counter import compilation_counter

    asked = prompts(task.cut_model())
    wanted = SamplingParams(max_tokens=ANSWER, temperature=0, logprobs=2, ignore_eos=True, detokenize=False)
    answers = []
    with started(task, "int8", **WAYS[task.variant]) as llm:
        for seed in SEEDS:
            llm.collective_rpc("bench", args=("draw", seed))
            llm.collective_rpc("bench", args=("sync", "bare", False))
            answers.append([_answer(request) for request in llm.generate(asked, wanted, use_tqdm=False)])
        faults = llm.collective_rpc("bench", args=("faults",))[0]
        captured = compilation_counter.num_cudagraph_captured
    if task.device == "cuda" and bool(captured) is not (task.variant in REFERENCES):
        faults.append(f"{task.variant}: vLLM captured {captured} CUDA graphs")
    return {"answers": answers, "captured": captured, "faults": faults}


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


def differences(reference: dict, other: dict) -> list[str]:
    """In what an engine's answers differ from the reference's; and if a refit left the answers as they were.

    Where the two best tokens are closer than the tolerance, either may be chosen: the answer is followed no further.
    """
    faults = []
    for number, (expected, answers) in enumerate(zip(reference["answers"], other["answers"], strict=True), 1):
        followed = 0
        for prompt, (one, two) in enumerate(zip(expected, answers, strict=True)):
            for step, (a, b) in enumerate(zip(one, two, strict=True)):
                place = f"weights {number}, prompt {prompt}, token {step}"
                if a["token"] != b["token"]:
                    if a["gap"] > 2 * TOLERANCE:
                        faults.append(f"{place}: {b['token']} instead of {a['token']}")
                    break
                if not abs(a["logprob"] - b["logprob"]) <= TOLERANCE:
                    faults.append(f"{place}: log-probability {b['logprob']:.3f} instead of {a['logprob']:.3f}")
                followed += 1
        if 2 * followed < PROMPTS * ANSWER:
            faults.append(f"weights {number}: only {followed} of {PROMPTS * ANSWER} tokens could be compared")
    before, after = ([[step["token"] for step in answer] for answer in answers] for answers in other["answers"])
    unchanged = sum(a == b for a, b in zip(before, after, strict=True))
    if unchanged:
        faults.append(f"{unchanged} of {PROMPTS} answers did not change with the weights")
    return faults


def largest_difference(reference: dict, other: dict) -> float:
    """Of the log-probabilities of first tokens, in nats."""
    pairs = zip(reference["answers"], other["answers"], strict=True)
    return max(abs(a[0]["logprob"] - b[0]["logprob"]) for one, two in pairs for a, b in zip(one, two, strict=True))
