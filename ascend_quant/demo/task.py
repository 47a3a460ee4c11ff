"""The demo's task, two-operand addition ("7+5=" -> "12"), the lessons of a careless teacher, and the tiny models.

The task is small enough to enumerate every problem. The warm-up imitates the teacher, who often subtracts instead; the
reward does not, so RL has something to correct.

The models have the real Qwen2 and Qwen3-MoE architectures in sizes that a CPU trains in a minute, with one token per
character. `vocab_size` equals the tokenizer's length, since verl masks padding ids only in vLLM, which would look like
a mismatch. transformers >= 5 loads every `model_type=qwen2` tokenizer as a ByteLevel BPE, so this one is a ByteLevel
BPE without merges, which transformers, vLLM and verl read in the same way. verl requires "\\n" to be one token and
`<|im_end|>` to exist.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

LARGEST_OPERAND = 9
TEACHER_RIGHT = 0.4  # fraction of right answers; if one operand is 0, adding and subtracting agree and all are right
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPACE, NEWLINE = "Ġ", "Ċ"  # ByteLevel's encoding of " " and "\n"
SUMS = "0123456789+="  # the alphabet of addition
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
TINY = {  # 0.3 M parameters
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 64,
}
# The same size, with heads that NPUs support: for packed sequences (layout TND), CANN's aclnnFusedInferAttentionScore
# requires head sizes of 64, 128 or 192, and refuses others with E89999 (vllm-project/vllm-ascend issue 9632).
TINY_ON_NPUS = {**TINY, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True}


@dataclass(frozen=True)
class Problem:
    """A prompt, the only right answer, and the value that the reward compares (see reward.py)."""

    prompt: str
    answer: str
    result: str


@dataclass(frozen=True)
class Addition:
    """The task over all pairs of operands."""

    name: str = "addition"  # data source
    description: str = f"addition of two numbers up to {LARGEST_OPERAND}"  # for humans
    alphabet: str = SUMS  # characters of prompts and answers, one token each
    width: int = len("9+9=18") + 1  # tokens of the longest prompt with its answer and the end token

    def problems(self, seed: int) -> Iterator[Problem]:
        """Yield problems for the model without end: round after round, each in its own order."""
        rng = random.Random(seed)
        while True:
            yield from rng.sample(all_problems(), k=len(all_problems()))

    def lessons(self, seed: int, size: int) -> Iterator[list[tuple[str, str]]]:
        """Yield batches of prompts with the careless teacher's answers, without end."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        problems = all_problems()
        while True:
            rows = torch.randint(len(problems), (size,), generator=generator).tolist()
            careful = (torch.rand(size, 1, generator=generator) < TEACHER_RIGHT).flatten().tolist()
            yield [
                (problem.prompt, problem.answer if right else mistake(problem))
                for problem, right in zip((problems[row] for row in rows), careful, strict=True)
            ]

    def exam(self) -> list[Problem]:
        """Return the problems over which the warm-up's accuracy is computed."""
        return all_problems()


def all_problems() -> list[Problem]:
    """List every pair of operands once, in order."""
    operands = range(LARGEST_OPERAND + 1)
    return [Problem(f"{a}+{b}=", str(a + b), str(a + b)) for a in operands for b in operands]


def mistake(problem: Problem) -> str:
    """Return the teacher's wrong answer: the difference of the operands."""
    first, second = map(int, problem.prompt.removesuffix("=").split("+"))
    return str(abs(first - second))


def verl_rows(prompts: int, seed: int, task: Addition) -> list[dict]:
    """Return rows for verl's RLHFDataset from the first `prompts` problems."""
    return [
        {
            "data_source": task.name,
            "ability": "math",
            "prompt": [{"role": "user", "content": problem.prompt}],
            "reward_model": {"style": "rule", "ground_truth": problem.result},
            "extra_info": {"index": index},
        }
        for index, problem in enumerate(islice(task.problems(seed), prompts))
    ]


def write_parquet(path: Path, prompts: int, seed: int, task: Addition) -> None:
    """Write the first `prompts` problems."""
    import pandas

    pandas.DataFrame(verl_rows(prompts, seed, task)).to_parquet(path)


def vocabulary(alphabet: str = SUMS) -> dict[str, int]:
    """Return the tokens and their ids: special tokens, characters, blank and newline."""
    return {token: index for index, token in enumerate([PAD, START, END, *alphabet, SPACE, NEWLINE])}


def save_tokenizer(folder: Path, alphabet: str = SUMS) -> None:
    """Write the tokenizer's files into a checkpoint folder; the model's `vocab_size` must equal its length."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(vocabulary(alphabet), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, eos_token=END, additional_special_tokens=[START]
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)


def build_model(name: str, seed: int, shape: Mapping[str, int] = TINY, alphabet: str = SUMS) -> Any:
    """Build a randomly initialised float32 model; the same seed gives the same weights."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3MoeConfig

    tokens = vocabulary(alphabet)
    numbers = {
        **shape,
        "vocab_size": len(tokens),
        "tie_word_embeddings": False,
        "pad_token_id": tokens[PAD],
        "eos_token_id": tokens[END],
        "bos_token_id": None,
    }
    torch.manual_seed(seed)
    config = Qwen2Config(**numbers) if name == "qwen2" else Qwen3MoeConfig(**numbers, **EXPERTS)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)
