"""What a decoder layer is made of: a mixer (attention of some kind) and a feed (an MLP, or experts).

Each part knows its matrices, as (k, n) of x_MK @ w_NK.T, those that read the same input fused into one as the engine
does; what of it is never quantized; what it keeps of a sequence; and what of it one of several devices holds.
"""

from dataclasses import dataclass, replace

from ascend_quant.advise import AdviceError

Matrix = tuple[int, int]
BF16, FLOAT32, CODE = 2, 4, 1  # bytes


@dataclass(frozen=True)
class Cache:
    """What keys and values are kept in.

    Attributes:
        element: bytes of one.
        scale: bytes that each token and head has besides, of its key and of its value apart.
    """

    name: str
    element: int
    scale: int = 0

    def head(self, elements: int) -> int:
        """Bytes of one token's key, or value, of one head."""
        return elements * self.element + self.scale


AUTO, INT8, FP8 = Cache("auto", BF16), Cache("int8", CODE, FLOAT32), Cache("fp8", CODE)


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention.

    Attributes:
        window: tokens that a row sees, its own among them; None for all.
        gated: the query's projection also gives a gate of the output (Qwen3-Next).
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    gated: bool = False

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        q = self.heads * self.head_dim
        return (hidden, (1 + self.gated) * q + 2 * self.kv_heads * self.head_dim), (q, hidden)

    def kept(self) -> int:
        """Elements that stay BF16."""
        return 0

    def cached(self, tokens: float, cache: Cache) -> float:
        """Bytes kept of a sequence of so many tokens."""
        return self.seen(tokens) * 2 * self.kv_heads * cache.head(self.head_dim)

    def seen(self, tokens: float) -> float:
        """How many of these a row at their end attends to."""
        return tokens if self.window is None else min(tokens, self.window)

    def of_one_device(self, tp: int) -> "Attention":
        """Its share; key-value heads are repeated where there are too few."""
        heads = share("heads", self.heads, tp)
        if self.kv_heads % tp and tp % self.kv_heads:
            raise AdviceError(
                f"--tp {tp} neither divides the model's {self.kv_heads} key-value heads nor is a multiple"
            )
        return replace(self, heads=heads, kv_heads=max(1, self.kv_heads // tp))


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (arXiv 2405.04434): of a token one latent and one rotated key are kept for all heads.

    Attributes:
        q_rank: of the queries' low-rank projection; None where they have a plain one.
        kv_rank: elements of the latent.
        nope, rope: of a query, elements without and with rotation.
        value_dim: elements of a head's value.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value_dim: int

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """Inputs' (one or two), kv_b last but one, o last."""
        q, latent = self.heads * (self.nope + self.rope), self.kv_rank + self.rope
        first = ((hidden, q + latent),) if self.q_rank is None else ((hidden, self.q_rank + latent), (self.q_rank, q))
        return (*first, self.up(), (self.heads * self.value_dim, hidden))

    def up(self) -> Matrix:
        """kv_b: keys and values from the latent. Decoding multiplies the queries and the output with it instead."""
        return self.kv_rank, self.heads * (self.nope + self.value_dim)

    def kept(self) -> int:
        return 0

    def cached(self, tokens: float, cache: Cache) -> float:
        return tokens * (self.kv_rank + self.rope) * cache.element

    def of_one_device(self, tp: int) -> "Latent":
        """Heads are shared out; the latent, and what makes it, every device has whole."""
        return replace(self, heads=share("heads", self.heads, tp))


@dataclass(frozen=True)
class Linear:
    """Gated delta rule (arXiv 2412.06464): a state of fixed size a sequence, after a short convolution.

    Attributes:
        kernel: of the convolution.
        state_bytes: of an element of the state.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    state_bytes: int = BF16

    @property
    def mixed(self) -> int:
        """Elements that go through the convolution: queries, keys, values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        values = self.value_heads * self.value_dim
        return (hidden, self.mixed + values), (hidden, 2 * self.value_heads), (values, hidden)

    def kept(self) -> int:
        return self.mixed * self.kernel

    def cached(self, tokens: float, cache: Cache) -> float:
        """The same for any number of tokens, and never quantized."""
        state = self.value_heads * self.key_dim * self.value_dim
        return state * self.state_bytes + self.mixed * (self.kernel - 1) * BF16

    def of_one_device(self, tp: int) -> "Linear":
        keys, values = share("linear key heads", self.key_heads, tp), share("linear value heads", self.value_heads, tp)
        return replace(self, key_heads=keys, value_heads=values)


@dataclass(frozen=True)
class Mlp:
    """Gate and up, their product, down."""

    width: int

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        return (hidden, 2 * self.width), (self.width, hidden)

    def of_one_device(self, tp: int) -> "Mlp":
        return Mlp(share("width", self.width, tp))


@dataclass(frozen=True)
class Experts:
    """A router, experts of which each token takes `top_k`, and perhaps an MLP that all tokens take.

    Attributes:
        width: of one expert.
        shared: width of the MLP for all tokens (all shared experts together), 0 for none.
        shared_gate: a row that weighs its output.
        parts: into how many the experts are shared out whole; 1 where devices cut each.
    """

    experts: int
    top_k: int
    width: int
    shared: int = 0
    shared_gate: bool = False
    parts: int = 1

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """Of one expert."""
        return Mlp(self.width).matrices(hidden)

    def for_all(self, hidden: int) -> tuple[Matrix, ...]:
        """Of the shared MLP."""
        return Mlp(self.shared).matrices(hidden) if self.shared else ()

    def here(self) -> float:
        """Experts on one device."""
        return self.experts / self.parts

    def kept(self, hidden: int) -> int:
        return hidden * (self.experts + self.shared_gate)

    def of_one_device(self, tp: int, devices: int, whole: bool) -> "Experts":
        """Its share where `devices` hold the experts, each some of them or a slice of all."""
        shared = share("shared experts' width", self.shared, tp)
        if whole:
            share("experts", self.experts, devices, "--tp x --dp with --expert-parallel:")
            return replace(self, shared=shared, parts=devices)
        return replace(self, shared=shared, width=share("expert_width", self.width, devices, "--tp x --dp ="))


Mixer = Attention | Latent | Linear
Feed = Mlp | Experts


def share(what: str, size: int, devices: int, option: str = "--tp") -> int:
    """What each of so many devices has of it.

    Raises:
        AdviceError: it does not divide.
    """
    if size % devices:
        raise AdviceError(f"{option} {devices} does not divide the model's {what} {size}")
    return size // devices
