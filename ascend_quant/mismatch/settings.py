"""The options of `ascend-quant mismatch`, checked before any engine starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from os.path import isdir, isfile
from pathlib import Path

from ascend_quant.estimators import THRESHOLD
from ascend_quant.mismatch.cache_rounding import ROUNDINGS
from ascend_quant.mismatch.positions import EDGES
from ascend_quant.profile.rules import files_of
from ascend_quant.schemes import get_scheme

SEEDS = 1 << 32


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
        profile: what `ascend-quant profile -o` was given, one of the files, or a folder with one profile.
        length: of a recipe's responses, in tokens, to which the weights are extrapolated; None for none.
        try_suggestion: whether an engine is started with what is suggested.
        kv_cache: that of the quantized engine: auto (BF16), int8 or fp8; with the latter two the KL is split.
        buckets: positions at which the split's ranges end.
        emulate_cache: round keys and values in transformers' attention; no engine then has the cache.
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
    length: int | None = None
    try_suggestion: bool = True
    kv_cache: str = "auto"
    buckets: Sequence[int] = EDGES
    emulate_cache: bool = False

    def __post_init__(self):
        codes = get_scheme(self.scheme).codes
        for name in ("max_tokens", "tokens", "tp", "length"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise OptionError(f"--{name.replace('_', '-')} {value}: at least 1 is needed")
        if not 0 < self.threshold < inf:
            raise OptionError(f"--threshold {self.threshold}: importance weights are clipped at a number above 0")
        if not 0 <= self.seed < SEEDS:
            raise OptionError(f"--seed {self.seed}: vLLM takes one from 0 to {SEEDS - 1}")
        if self.memory is not None and not 0 < self.memory <= 1:
            raise OptionError(f"--gpu-memory-utilization {self.memory}: a fraction is wanted, above 0 and at most 1")
        if self.kv_cache not in ROUNDINGS:
            raise OptionError(f"--kv-cache {self.kv_cache!r:.80}: choose from {', '.join(ROUNDINGS)}")
        if list(self.buckets) != sorted({edge for edge in self.buckets if edge > 0}):
            raise OptionError(
                f"--bucket {', '.join(map(str, self.buckets))}: give positions above 0, each once, ascending"
            )
        if self.emulate_cache and self.kv_cache == "auto":
            raise OptionError("--emulate-cache: says nothing of BF16; give --kv-cache int8 or fp8 with it")
        if self.profile is not None:
            profile_at(self.profile)
        if self.profile is not None and codes not in ("int8", None):
            raise OptionError(f"--profile {self.profile}: profiles go with int8, not with {self.scheme}; leave it out")


def profile_at(path: Path) -> Path:
    """The profile that a path means: FlashRL's .pt, or the stem of our two files.

    Raises:
        OptionError: there is none, or a folder holds several.
    """
    if path.suffix == ".pt" and isfile(path):
        return path
    stems = [file.with_suffix("") for file in sorted(path.glob("*.safetensors"))] if isdir(path) else [path]
    found = [stem for stem in stems if path.name and all(map(isfile, files_of(stem)))]
    if len(found) != 1:
        wanted = "what `ascend-quant profile -o` was given, or a folder with one profile"
        raise OptionError(f"--profile {path!s:.200}: {len(found)} profiles are there; give {wanted}")
    return found[0]
