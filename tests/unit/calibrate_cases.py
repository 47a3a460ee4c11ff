"""Tiny models that have learnt to add, so that weights and inputs have structure; texts to calibrate and to judge by.

Shape suffixes: B samples, S tokens of one, V tokens of the vocabulary.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen3MoeConfig

VOCABULARY = ["<pad>", "<eos>", *"0123456789+= \n:aesrtu"]
LENGTH = 64
COMMON = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "max_position_embeddings": 128,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": None,
    "tie_word_embeddings": False,
}
MOE = {"head_dim": 32, "moe_intermediate_size": 128, "num_experts": 4, "num_experts_per_tok": 2}
CONFIGS = {
    "qwen2": lambda: Qwen2Config(**COMMON),
    "qwen3-moe": lambda: Qwen3MoeConfig(**COMMON, **MOE, norm_topk_prob=True),
}
TEMPLATE = "{% for message in messages %}{{ message.role }}:{{ message.content }}\n{% endfor %}"


def tokenizer() -> PreTrainedTokenizerFast:
    """A token a character; chats are "role:content" lines."""
    tokens = Tokenizer(models.WordLevel({token: i for i, token in enumerate(VOCABULARY)}, unk_token="<pad>"))
    tokens.pre_tokenizer, tokens.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    made = PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="<pad>", eos_token="<eos>")
    made.chat_template = TEMPLATE
    return made


def sums(seed: int) -> Iterator[str]:
    """Texts of eight sums, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        pairs = torch.randint(0, 100, (8, 2), generator=generator).tolist()
        yield "".join(f"{a}+{b}={a + b}\n" for a, b in pairs)


def write_texts(path: Path, count: int, seed: int) -> Path:
    """A .jsonl file of `count` texts."""
    texts = sums(seed)
    path.write_text("".join(json.dumps({"text": next(texts)}) + "\n" for _ in range(count)))
    return path


def tokens(count: int, seed: int) -> torch.Tensor:
    """(B, S) of sums."""
    texts, encode, ids = sums(seed), tokenizer(), []
    while len(ids) < count * LENGTH:
        ids += [*encode(next(texts))["input_ids"], encode.eos_token_id]
    return torch.tensor(ids[: count * LENGTH]).view(count, LENGTH)


def learnt(kind: str, folder: Path, steps: int = 30) -> Path:
    """A BF16 checkpoint with a tokenizer, trained from random weights."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind](), experts_implementation="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for batch_BS in tokens(16 * steps, seed=1).view(steps, 16, LENGTH):
        model(input_ids=batch_BS, labels=batch_BS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@torch.no_grad()
def log_probabilities(folder: Path, tokens_BS: torch.Tensor) -> torch.Tensor:
    """float32 (B, S, V), of a BF16 checkpoint's weights in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model(input_ids=tokens_BS).logits.log_softmax(-1)


def divergence(true_BSV: torch.Tensor, other_BSV: torch.Tensor) -> float:
    """Mean KL(true || other), nats a token."""
    return float((true_BSV.exp() * (true_BSV - other_BSV)).sum(-1).mean())
