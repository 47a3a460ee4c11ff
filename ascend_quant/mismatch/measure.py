"""`ascend-quant mismatch`: runs engines one after the other, and reports on the tokens that they sampled and scored.

1. The engine with the quantized weights (and cache) samples, as a rollout does: by decoding.
2. With a quantized KV cache two more engines sample in the same way: one with the quantized weights and a BF16 cache,
   one with BF16 weights and the quantized cache. Each is a separate policy, and samples its own tokens.
3. The BF16 engine (this plugin's, scheme bf16) scores all of these, each sequence as one prompt, as a trainer does, and
   the oracle processes the inputs of its layers. It then samples from half of the prompts itself and scores the result:
   the noise floor, which is the effect of the order of sums in decoding and scoring.

So every metric is about KL(policy || bf16), estimated from tokens that the policy sampled. No tokens are forced while
decoding. All engines run without graph capture (`enforce_eager`).
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ascend_quant.mismatch import engines, prompts
from ascend_quant.mismatch.engines import Task
from ascend_quant.mismatch.figures import figures
from ascend_quant.mismatch.layer_errors import ranked
from ascend_quant.schemes import get_scheme
from ascend_quant.terminal.progress import waiting

LAYER_TOKENS = 512  # tokens with which layers are measured
EXTENSION = "ascend_quant.mismatch.watch.Extension"
# A scoring engine computes float32 logits of all tokens of a batch, beyond vLLM's memory estimate: few at a time.
BATCH_TOKENS, BATCH_SEQUENCES = 1024, 128


@dataclass(frozen=True)
class Settings:
    """The settings of a measurement.

    Attributes:
        prompts: path of a file (see prompts.py); None for the built-in prompts.
        ignore: layers that keep their dtype, names and patterns.
        kv_cache: KV cache of the quantized engine: auto (BF16), int8 or fp8.
        max_tokens: maximum tokens sampled per prompt.
        tokens: maximum tokens sampled in total; prompts beyond it are dropped, evenly over the file.
        tp: tensor-parallel size.
        memory: gpu_memory_utilization; None for vLLM's default.
    """

    model: str
    scheme: str
    prompts: Path | None = None
    ignore: tuple[str, ...] = ()
    kv_cache: str = "auto"
    max_tokens: int = 128
    tokens: int = 16384
    tp: int = 1
    memory: float | None = None


@dataclass(frozen=True)
class Asked:
    """The prompts as token ids.

    Attributes:
        left_out: number of prompts of the file that are not used.
        stop: tokens that end a response.
        length: maximum sequence length of an engine.
    """

    prompts: list[list[int]]
    left_out: int
    stop: list[int]
    length: int


def measure(settings: Settings) -> dict[str, Any]:
    """Return the report for JSON: `mismatch` and `noise`, the `parts` of a quantized cache, `layers`, `sequences`.

    Raises:
        UnknownScheme, BadCheckpoint, BadDocument: an input is invalid; raised before any engine starts.
        EngineFailed: an engine failed; the message has the end of its log.
    """
    quantized = get_scheme(settings.scheme).quantized
    asked = ask(settings)
    sampled = {}
    for name, (scheme, cache) in policies(settings).items():
        task = Task(_engine(settings, asked, scheme, cache), asked.prompts, _sampling(settings, asked))
        with waiting(f"{scheme} weights, {('bf16' if cache == 'auto' else cache)} cache: sampling"):
            sampled[name] = engines.run(task)["sampled"]
    task = reference_task(settings, asked, sampled, settings.scheme if quantized else None)
    with waiting("bf16: scoring, then sampling and scoring its own tokens"):
        other = engines.run(task)
    scored = other["scored"] | {"noise": other["rescored"]}
    sequences = {
        name: [one | {"train": train} for one, train in zip(found, scored[name], strict=True)]
        for name, found in (sampled | {"noise": other["sampled"]}).items()
    }
    found = {name: figures(some) for name, some in sequences.items()}
    return {
        **asdict(settings),
        "prompts": settings.prompts and str(settings.prompts),
        "prompts_left_out": asked.left_out,
        "machine": other["machine"],
        "mismatch": found.pop("mismatch"),
        "noise": found.pop("noise"),
        "parts": found,
        "layers": [asdict(layer) for layer in ranked(other["layers"])],
        "sequences": sequences,
    }


def policies(settings: Settings) -> dict[str, tuple[str, str]]:
    """Return scheme and cache of the engines that sample, the rollout's first."""
    scheme, cache = settings.scheme, settings.kv_cache
    found = {"mismatch": (scheme, cache)}
    if cache != "auto" and get_scheme(scheme).quantized:
        found |= {"weights": (scheme, "auto"), "cache": ("bf16", cache)}
    return found


def ask(settings: Settings) -> Asked:
    """Return the prompts as token ids of the model."""
    vocabulary = prompts.load(settings.model)
    given = None if settings.prompts is None else prompts.read(settings.prompts)
    most = max(1, settings.tokens // settings.max_tokens)
    taken = None if given is None else prompts.evenly(given, most)
    encoded = prompts.evenly(prompts.encode(taken, vocabulary), most)
    left_out = len(given or prompts.built_in()) - len(encoded)
    length = max(map(len, encoded)) + settings.max_tokens + 1  # scoring samples one more token
    return Asked(encoded, left_out, vocabulary.stop, length)


def reference_task(settings: Settings, asked: Asked, sampled: dict[str, list[dict]], watched: str | None) -> Task:
    """Return the BF16 engine's task."""
    engine = _engine(settings, asked, "bf16", "auto") | {"worker_extension_cls": EXTENSION}
    half = prompts.evenly(asked.prompts, -(-len(asked.prompts) // 2))
    total = sum(len(one["prompt"]) + len(one["response"]) for one in sampled["mismatch"])
    every = -(-total // LAYER_TOKENS)
    return Task(engine, half, _sampling(settings, asked), sampled, watched, every)


def _engine(settings: Settings, asked: Asked, scheme: str, cache: str) -> dict[str, Any]:
    quantization = {"quant_method": "ascend_quant", "scheme": scheme, "ignore": list(settings.ignore)}
    if cache != "auto":
        quantization["kv_cache"] = cache
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
        "seed": 0,
    }
    return options if settings.memory is None else options | {"gpu_memory_utilization": settings.memory}


def _sampling(settings: Settings, asked: Asked) -> dict[str, Any]:
    return {"max_tokens": settings.max_tokens, "stop_token_ids": asked.stop}
