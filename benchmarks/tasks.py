"""One measurement to make, and what became of it; process.py carries it out."""

from dataclasses import dataclass

from benchmarks.models import Model, get_model


@dataclass(frozen=True)
class Rollouts:
    """What part generation generates.

    Attributes:
        batches: sequences at a time.
        prompt, answer: tokens of each.
        logprobs: whether the log-probability of each sampled token is returned.
        trace: look into a few decode steps too.
        contexts: tokens of the sequences, of part decoding.
        memory: share of a GPU's memory that an engine takes; None for vLLM's own.
    """

    batches: tuple[int, ...]
    prompt: int = 256
    answer: int = 512
    logprobs: bool = False
    trace: bool = False
    contexts: tuple[int, ...] = ()
    memory: float | None = None


@dataclass(frozen=True)
class Task:
    """What one process measures.

    Attributes:
        part: the module that does it: kernels, engine, graphs, ranks, generation or decoding.
        layers: how many of the model's; None for all.
        variant: which of the part's alternatives: a scheme, or a way to run the model.
        scheme: of the engines of parts graphs and ranks.
        rollouts: of parts generation and decoding.
        cache: of part decoding, what keys and values are kept in.
    """

    part: str
    model: str
    device: str
    layers: int | None = None
    rounds: int = 5
    variant: str = ""
    ranks: int = 1
    expert_parallel: bool = False
    scheme: str = "int8"
    rollouts: Rollouts | None = None
    cache: str = "auto"

    def cut_model(self) -> Model:
        """The model with as many layers as asked for."""
        return get_model(self.model).cut(self.layers)

    def title(self) -> str:
        """For a line of progress."""
        ranks = f"{self.ranks} ranks" if self.ranks > 1 else ""
        dealt = "with experts dealt out" if self.expert_parallel else ""
        scheme = self.scheme if self.part in ("graphs", "ranks") else ""
        cache = f"with {self.cache} cache" if self.part == "decoding" else ""
        return " ".join(word for word in (self.model, self.part, scheme, self.variant, cache, ranks, dealt) if word)


@dataclass(frozen=True)
class Outcome:
    """What became of a task.

    Attributes:
        result: what the part's `run` returned; None if it failed.
        error: the process's last words, if it failed.
    """

    task: Task
    seconds: float
    result: dict | None
    error: str = ""
