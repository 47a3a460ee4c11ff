"""`ascend-quant mismatch`: two engines, one after the other, and what comes of it.

1. The engine with the quantized weights samples.
2. The BF16 engine (this plugin's, scheme bf16) scores the same tokens, and its layers' inputs are put through the
   oracle. It then samples itself and scores that, from half of the prompts: the noise floor, what the order of sums
   alone does between decoding and scoring.

Both run without graph capture (`enforce_eager`).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ascend_quant.mismatch import engines, prompts, tokens
from ascend_quant.mismatch.engines import Task, Told
from ascend_quant.mismatch.estimators import THRESHOLD, mismatch, sequence_weights
from ascend_quant.mismatch.suggestion import ranked, suggest
from ascend_quant.schemes import get_scheme

LAYER_TOKENS = 512  # that the layers are looked at with
EXTENSION = "ascend_quant.mismatch.watch.Extension"
# A scoring engine makes logits of all tokens of a batch in float32, beside what vLLM thinks it needs: few at a time.
BATCH_TOKENS, BATCH_SEQUENCES = 1024, 128


class OptionError(ValueError):
    """Options that do not go together; the message is one line for the user."""


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        prompts: a file (see prompts.py); None for the built-in ones.
        max_tokens: sampled a prompt.
        tokens: sampled in all, at most: prompts are left out, the rest lie evenly over the file.
        max_model_len: by default what the prompts need.
        memory: gpu_memory_utilization; None for vLLM's default.
    """

    model: str
    scheme: str
    prompts: Path | None = None
    ignore: Sequence[str] = ()
    profile: Path | None = None
    max_tokens: int = 128
    tokens: int = 16384
    threshold: float = THRESHOLD
    seed: int = 0
    tp: int = 1
    max_model_len: int | None = None
    memory: float | None = None

    def __post_init__(self):
        codes = get_scheme(self.scheme).codes
        for name in ("max_tokens", "tokens", "tp"):
            if getattr(self, name) < 1:
                raise OptionError(f"--{name.replace('_', '-')} {getattr(self, name)}: at least 1 is needed")
        if self.threshold <= 0:
            raise OptionError(f"--threshold {self.threshold}: importance weights are clipped at a number above 0")
        if self.profile is not None and not self.profile.exists():
            raise OptionError(f"--profile {self.profile}: there is no such file")
        if self.profile is not None and codes not in ("int8", None):
            raise OptionError(f"--profile {self.profile}: profiles go with int8, not with {self.scheme}; leave it out")


@dataclass(frozen=True)
class Asked:
    """The prompts as token ids.

    Attributes:
        left_out: how many prompts of the file were not taken.
        stop: tokens that end a response.
        length: the longest sequence that an engine must hold.
    """

    prompts: list[list[int]]
    left_out: int
    stop: list[int]
    length: int


@dataclass(frozen=True)
class Pair:
    """Sequences that one policy sampled (with its log-probabilities) and another one scored."""

    sampled: list[dict[str, Any]]
    scored: list[list[float]]
    threshold: float

    def figures(self) -> dict[str, Any]:
        """Those of `Mismatch`, the sequences' `Weights`, and how many there are."""
        rollout = [torch.tensor(one["logprobs"], dtype=torch.float64) for one in self.sampled]
        train = [torch.tensor(one, dtype=torch.float64) for one in self.scored]
        return {
            "tokens": sum(map(len, rollout)),
            "sequences": len(rollout),
            **asdict(mismatch(torch.cat(rollout), torch.cat(train), self.threshold)),
            "sequence_weights": asdict(sequence_weights(rollout, train, self.threshold)),
        }

    def raw(self) -> list[dict[str, Any]]:
        """Every sequence with both policies' log-probabilities."""
        return [
            {"prompt": one["prompt"], "response": one["response"], "rollout": one["logprobs"], "train": train}
            for one, train in zip(self.sampled, self.scored, strict=True)
        ]


def measure(settings: Settings, told: Told) -> dict[str, Any]:
    """The report, as its JSON has it.

    Args:
        told: is told what is going on.

    Raises:
        PromptError, ModelError, OptionError: before any engine starts.
        EngineFailed: with the engine's last words.
    """
    told("prompts", 0, 1)
    asked = ask(settings)
    told("prompts", 1, 1)
    one = engines.run(sampling_task(settings, asked), _named(f"first engine ({settings.scheme})", told))
    other = engines.run(reference_task(settings, asked, one["sampled"]), _named("second engine (bf16)", told))
    pair = Pair(one["sampled"], other["scored"], settings.threshold)
    noise = Pair(other["own"]["sampled"], other["own"]["scored"], settings.threshold)
    layers = ranked(other["layers"])
    return {
        **{name: _plain(value) for name, value in asdict(settings).items()},
        "prompts_left_out": asked.left_out,
        "machine": other["machine"],
        "mismatch": pair.figures(),
        "noise": noise.figures(),
        "layers": [asdict(layer) for layer in layers],
        "suggested_ignore": asdict(suggest(layers)),
        "raw": {"mismatch": pair.raw(), "noise": noise.raw()},
    }


def ask(settings: Settings) -> Asked:
    """The prompts in the model's tokens."""
    config, tokenizer = tokens.load_config(settings.model), tokens.load_tokenizer(settings.model)
    given = None if settings.prompts is None else prompts.read(settings.prompts)
    vocabulary = config.get_text_config().vocab_size
    most = max(1, settings.tokens // settings.max_tokens)
    taken = None if given is None else prompts.evenly(given, most)
    encoded = prompts.evenly(tokens.encode(taken, tokenizer, vocabulary, settings.seed), most)
    left_out = len(given or prompts.built_in()) - len(encoded)
    length = max(map(len, encoded)) + settings.max_tokens + 1  # scoring samples one token more
    if settings.max_model_len is not None and settings.max_model_len < length:
        raise OptionError(
            f"--max-model-len {settings.max_model_len}: the longest prompt needs {length} "
            f"({length - settings.max_tokens - 1} tokens, --max-tokens {settings.max_tokens}, and one)"
        )
    stop = tokens.stop_tokens(settings.model, config, tokenizer)
    return Asked(encoded, left_out, stop, settings.max_model_len or length)


def sampling_task(settings: Settings, asked: Asked) -> Task:
    """The quantized engine's."""
    return Task("sample", _engine(settings, asked, settings.scheme), asked.prompts, _sampling(settings, asked))


def reference_task(settings: Settings, asked: Asked, sampled: list[dict]) -> Task:
    """The BF16 engine's."""
    engine = _engine(settings, asked, "bf16") | {"worker_extension_cls": EXTENSION}
    half = prompts.evenly(asked.prompts, -(-len(asked.prompts) // 2))
    total = sum(len(one["prompt"]) + len(one["response"]) for one in sampled)
    every = -(-total // LAYER_TOKENS)
    watched = settings.scheme if get_scheme(settings.scheme).quantized else None
    return Task("reference", engine, half, _sampling(settings, asked), sampled, watched, every)


def _engine(settings: Settings, asked: Asked, scheme: str) -> dict[str, Any]:
    quantization = {"quant_method": "ascend_quant", "scheme": scheme, "ignore": list(settings.ignore)}
    if settings.profile is not None and get_scheme(scheme).quantized:
        quantization["profile"] = str(settings.profile.resolve())
    options = {
        "model": settings.model,
        "quantization": "ascend_quant",
        "hf_overrides": {"quantization_config": quantization},
        "dtype": "bfloat16",
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "logprobs_mode": "raw_logprobs",
        "enable_prefix_caching": False,
        "tensor_parallel_size": settings.tp,
        "max_model_len": asked.length,
        "max_num_batched_tokens": BATCH_TOKENS,
        "max_num_seqs": BATCH_SEQUENCES,
        "seed": settings.seed,
    }
    return options if settings.memory is None else options | {"gpu_memory_utilization": settings.memory}


def _sampling(settings: Settings, asked: Asked) -> dict[str, Any]:
    return {"max_tokens": settings.max_tokens, "stop_token_ids": asked.stop}


def _named(engine: str, told: Told) -> Told:
    return lambda what, done, total: told(f"{engine} {what}", done, total)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else json.loads(json.dumps(value))
