"""`ascend-quant mismatch`: two engines, one after the other, and what comes of it.

1. The engine with the quantized weights samples.
2. The BF16 engine (this plugin's, scheme bf16) scores the same tokens, and its layers' inputs are put through the
   oracle. It then samples itself and scores that, from half of the prompts: the noise floor, what the order of sums
   alone does between decoding and scoring.
3. If layers stand out, a quantized engine that leaves them alone scores what the BF16 engine sampled: the KL that the
   suggestion gives. It is KL(bf16 || quantized), the other direction, equal to the second order of a small difference;
   the first engine's tokens would not do, since a wrecked policy samples what the healed one never would.
4. With a quantized KV cache, the first and the third engine have it, and the KL is split (cache_split.py).

All run without graph capture (`enforce_eager`).
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from ascend_quant.estimators import mismatch, sequence_weights
from ascend_quant.mismatch import engines, prompts, tokens
from ascend_quant.mismatch.cache_split import split
from ascend_quant.mismatch.cache_support import no_cache_for, no_engine_with
from ascend_quant.mismatch.cache_verdict import dominant
from ascend_quant.mismatch.culprits import culprits
from ascend_quant.mismatch.engines import OnProgress, Task
from ascend_quant.mismatch.layers import ranked
from ascend_quant.mismatch.lengths import at_length
from ascend_quant.mismatch.settings import OptionError, Settings, profile_at
from ascend_quant.mismatch.suggestion import suggest
from ascend_quant.mismatch.uncertainty import prompts_needed, standard_errors
from ascend_quant.schemes import get_scheme

LAYER_TOKENS = 512  # that the layers are looked at with
EXTENSION = "ascend_quant.mismatch.watch.Extension"
# A scoring engine makes logits of all tokens of a batch in float32, beside what vLLM thinks it needs: few at a time.
BATCH_TOKENS, BATCH_SEQUENCES = 1024, 128


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

    def vectors(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Each sequence's log-probabilities (tokens,), float64: of the policy that sampled and of the other."""
        sampled = (one["logprobs"] for one in self.sampled)
        return tuple([torch.tensor(one, dtype=torch.float64) for one in part] for part in (sampled, self.scored))

    def figures(self) -> dict[str, Any]:
        """Those of `Mismatch`, the sequences' `Weights`, their standard errors, and how many there are."""
        rollout, train = self.vectors()
        found = asdict(mismatch(torch.cat(rollout), torch.cat(train), self.threshold))
        errors = standard_errors(rollout, train, self.threshold)
        return {
            "tokens": sum(map(len, rollout)),
            "sequences": len(rollout),
            **found,
            "sequence_weights": asdict(sequence_weights(rollout, train, self.threshold)),
            "standard_errors": errors,
            "more_prompts": prompts_needed(len(rollout), found["k3_kl"], errors and errors["k3_kl"]),
        }

    def raw(self) -> list[dict[str, Any]]:
        """Every sequence with both policies' log-probabilities."""
        return [
            {"prompt": one["prompt"], "response": one["response"], "rollout": one["logprobs"], "train": train}
            for one, train in zip(self.sampled, self.scored, strict=True)
        ]


def measure(settings: Settings, on_progress: OnProgress) -> dict[str, Any]:
    """The report, as its JSON has it.

    Args:
        on_progress: gets what is going on, how much of it is done and of how much.

    Raises:
        PromptError, ModelError, OptionError: before any engine starts.
        EngineFailed: with the engine's last words.
    """
    on_progress("prompts", 0, 1)
    asked = ask(settings)
    on_progress("prompts", 1, 1)
    one = engines.run(sampling_task(settings, asked), _named(f"first engine ({settings.scheme})", on_progress))
    other = engines.run(reference_task(settings, asked, one["sampled"]), _named("second engine (bf16)", on_progress))
    pair = Pair(one["sampled"], other["scored"], settings.threshold)
    noise = Pair(other["own"]["sampled"], other["own"]["scored"], settings.threshold)
    layers = ranked([rank["layers"] for rank in other["layers"]], settings.scheme)
    blamed = culprits(layers, other["layers"][0]["tables"] if layers else ())
    suggestion = suggest(blamed, layers)
    tried = None
    if suggestion.ignore and settings.try_suggestion:
        tried = _tried(settings, asked, other["own"]["sampled"], suggestion.ignore, on_progress)
    cache = None if settings.kv_cache == "auto" else _cache(settings, asked, other["own"], on_progress)
    raw = {"mismatch": pair.raw(), "noise": noise.raw(), "cache": _apart(cache)}
    return {
        **{name: _plain(value) for name, value in asdict(settings).items()},
        "prompts_left_out": asked.left_out,
        "machine": other["machine"],
        "mismatch": pair.figures(),
        "noise": noise.figures(),
        "at_length": settings.length and asdict(at_length(settings.length, *pair.vectors(), settings.threshold)),
        "layers": [asdict(layer) | {"times": layer.times} for layer in layers],
        "culprits": [asdict(culprit) for culprit in blamed],
        "suggested_ignore": asdict(suggestion),
        "with_suggestion": tried,
        "cache": cache,
        "raw": raw,
    }


def _tried(
    settings: Settings, asked: Asked, sampled: list[dict], ignore: list[str], on_progress: OnProgress
) -> dict[str, Any]:
    """The figures with what is suggested, and how long it took."""
    start = monotonic()
    task = trial_task(settings, asked, sampled, ignore)
    found = engines.run(task, _named(f"third engine ({settings.scheme} with the suggestion)", on_progress))
    return {**Pair(sampled, found["scored"], settings.threshold).figures(), "seconds": monotonic() - start}


def _cache(settings: Settings, asked: Asked, own: dict[str, Any], on_progress: OnProgress) -> dict[str, Any]:
    """The KL split into its parts, and the largest of them."""

    def run(name: str, task: Task) -> dict:
        return engines.run(task, _named(name, on_progress))

    scheme = settings.scheme if get_scheme(settings.scheme).quantized else None
    emulated = None
    if settings.emulate_cache:
        options = {"model": settings.model, "kv_cache": settings.kv_cache}
        emulated = Task("emulate", options, [], {}, own["sampled"])
    found = split(
        own,
        settings.kv_cache,
        scheme,
        tuple(settings.buckets),
        settings.threshold,
        run,
        lambda scheme, cache: _engine(settings, asked, scheme, cache),
        emulated,
        torch.cuda.is_available(),
    )
    return found | {"dominant": dominant(found)}


def _apart(cache: dict[str, Any] | None) -> dict[str, list[list[float]]]:
    """Take the log-probabilities out of the split, by part."""
    return {part["name"]: part.pop("logprobs") for part in cache["parts"]} if cache else {}


def check_cache(settings: Settings, config: Any) -> None:
    """Raises OptionError where no engine here has the quantized cache that is asked for."""
    if settings.kv_cache == "auto":
        return
    if why := no_cache_for(config, settings.kv_cache):
        raise OptionError(f"--kv-cache {settings.kv_cache}: {why}")
    if not settings.emulate_cache and (why := no_engine_with(settings.kv_cache)):
        raise OptionError(f"--kv-cache {settings.kv_cache}: {why}; --emulate-cache shows what its rounding does")


def ask(settings: Settings) -> Asked:
    """The prompts in the model's tokens."""
    config, tokenizer = tokens.load_config(settings.model), tokens.load_tokenizer(settings.model)
    check_cache(settings, config)
    given = None if settings.prompts is None else prompts.read(settings.prompts)
    vocabulary = tokens.vocabulary_of(settings.model, config)
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
    engine = _engine(settings, asked, settings.scheme, cache_of(settings))
    return Task("sample", engine, asked.prompts, _sampling(settings, asked))


def reference_task(settings: Settings, asked: Asked, sampled: list[dict]) -> Task:
    """The BF16 engine's."""
    engine = _engine(settings, asked, "bf16") | {"worker_extension_cls": EXTENSION}
    half = prompts.evenly(asked.prompts, -(-len(asked.prompts) // 2))
    total = sum(len(one["prompt"]) + len(one["response"]) for one in sampled)
    every = -(-total // LAYER_TOKENS)
    watched = settings.scheme if get_scheme(settings.scheme).quantized else None
    return Task("reference", engine, half, _sampling(settings, asked), sampled, watched, every)


def trial_task(settings: Settings, asked: Asked, sampled: list[dict], ignore: list[str]) -> Task:
    """The quantized engine's that leaves some layers alone, and only scores."""
    healed = replace(settings, ignore=(*settings.ignore, *ignore))
    return Task("score", _engine(healed, asked, settings.scheme, cache_of(settings)), [], {}, sampled)


def cache_of(settings: Settings) -> str:
    """That of the engines that stand for the rollout."""
    return "auto" if settings.emulate_cache else settings.kv_cache


def _engine(settings: Settings, asked: Asked, scheme: str, cache: str = "auto") -> dict[str, Any]:
    quantization = {"quant_method": "ascend_quant", "scheme": scheme, "ignore": list(settings.ignore)}
    if cache != "auto":
        quantization["kv_cache"] = cache
    if settings.profile is not None and get_scheme(scheme).quantized:
        quantization["profile"] = str(profile_at(settings.profile).resolve())
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


def _named(engine: str, on_progress: OnProgress) -> OnProgress:
    return lambda what, done, total: on_progress(f"{engine} {what}", done, total)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else json.loads(json.dumps(value))
