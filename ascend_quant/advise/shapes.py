"""The sizes of a decoder, and those of one of the devices that share it."""

from dataclasses import dataclass, replace

from ascend_quant.advise import AdviceError
from ascend_quant.advise.layers import BF16, CODE, FLOAT32, Experts, Feed, Latent, Matrix, Mixer


@dataclass(frozen=True)
class Layer:
    """A layer, and how many there are of its kind."""

    mixer: Mixer
    feed: Feed
    times: int


@dataclass(frozen=True)
class Shape:
    """A decoder.

    Attributes:
        tied: whether the lm head is the embedding.
        left_out: what the config also tells of, and the estimate does not count.
    """

    hidden: int
    vocab: int
    tied: bool
    layers: tuple[Layer, ...]
    left_out: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        return sum(layer.times for layer in self.layers)

    @property
    def experts(self) -> Experts | None:
        """Of the layers that have some; all such layers are alike."""
        return next((layer.feed for layer in self.layers if isinstance(layer.feed, Experts)), None)

    def of_one_device(self, tp: int, dp: int = 1, expert_parallel: bool = False) -> "Shape":
        """What each of `tp` x `dp` devices holds: of attention and MLPs 1 / tp, of the experts 1 / (tp x dp).

        Raises:
            AdviceError: vLLM could not split the model like that.
        """

        def split(layer: Layer) -> Layer:
            feed = layer.feed
            own = feed.of_one_device(tp, tp * dp, expert_parallel) if isinstance(feed, Experts) else None
            return replace(layer, mixer=layer.mixer.of_one_device(tp), feed=own or feed.of_one_device(tp))

        if tp < 1 or dp < 1:
            raise AdviceError(f"--tp and --dp must be at least 1, not {tp} and {dp}")
        if expert_parallel and self.experts is None:
            raise AdviceError("--expert-parallel: the model has no experts")
        return replace(self, layers=tuple(split(layer) for layer in self.layers))

    def matrices(self) -> list[tuple[float, Matrix]]:
        """All that a scheme quantizes: how many of each."""
        found = []
        for layer in self.layers:
            found += [(layer.times, matrix) for matrix in layer.mixer.matrices(self.hidden)]
            feed, count = layer.feed, 1.0
            if isinstance(feed, Experts):
                found += [(layer.times, matrix) for matrix in feed.for_all(self.hidden)]
                count = feed.here()
            found += [(layer.times * count, matrix) for matrix in feed.matrices(self.hidden)]
        return found

    def kept(self) -> float:
        """Elements of embedding, head, routers and convolutions, which stay BF16; norms and biases are left out."""
        total = (1 if self.tied else 2) * self.vocab * self.hidden
        for layer in self.layers:
            total += layer.times * layer.mixer.kept()
            total += layer.times * layer.feed.kept(self.hidden) if isinstance(layer.feed, Experts) else 0
        return total

    def parameters(self) -> float:
        """Elements of all matrices."""
        return self.kept() + sum(times * k * n for times, (k, n) in self.matrices())


def weight_bytes(
    shape: Shape, scheme: str, tp: int = 1, dp: int = 1, expert_parallel: bool = False
) -> dict[str, float]:
    """Bytes on one of the devices: `quantized` layers, their `scales`, the `rest` in BF16.

    Norms and biases, some 0.01 % of all, are left out. Of latent attention vLLM keeps kv_b once more, in BF16, where
    the scheme quantizes it (integrations/vllm/layers/mla.py).
    """
    mine = shape.of_one_device(tp, dp, expert_parallel)
    embeddings = (1 if mine.tied else 2) * mine.vocab * mine.hidden
    rest = BF16 * (mine.kept() - embeddings + embeddings / tp)
    elements = sum(times * k * n for times, (k, n) in mine.matrices())
    if scheme == "bf16":
        return {"quantized": 0.0, "scales": 0.0, "rest": rest + BF16 * elements}
    derived = sum(
        layer.times * BF16 * _size(layer.mixer.up()) for layer in mine.layers if isinstance(layer.mixer, Latent)
    )
    scales = sum(times * n for times, (_, n) in mine.matrices())
    return {"quantized": CODE * elements, "scales": FLOAT32 * scales, "rest": rest + derived}


def _size(matrix: Matrix) -> int:
    return matrix[0] * matrix[1]
