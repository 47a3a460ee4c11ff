"""The sizes of a decoder, from its config.json; and those of one of the devices that share it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ascend_quant.advise import AdviceError

DENSE = ("llama", "qwen2", "qwen3")
WITH_EXPERTS = ("qwen3_moe",)


@dataclass(frozen=True)
class Shape:
    """A decoder of grouped-query attention and gated MLPs or experts.

    Attributes:
        width: intermediate size of a dense MLP.
        tied: whether the lm head is the embedding.
        dense_layers: layers with an MLP; the others have experts.
        expert_width: intermediate size of one expert.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocab: int
    tied: bool
    dense_layers: int
    experts: int = 0
    top_k: int = 0
    expert_width: int = 0

    @property
    def expert_layers(self) -> int:
        return self.layers - self.dense_layers

    def of_one_device(self, tp: int) -> "Shape":
        """What each of `tp` devices holds of every layer; key-value heads are repeated where there are too few.

        Raises:
            AdviceError: vLLM could not split the model like that.
        """
        if tp < 1:
            raise AdviceError(f"--tp must be at least 1, not {tp}")
        widths = {
            "heads": self.heads,
            "width": self.width if self.dense_layers else 0,
            "expert_width": self.expert_width,
        }
        for name, size in widths.items():
            if size % tp:
                raise AdviceError(f"--tp {tp} does not divide the model's {name} {size}")
        if self.kv_heads % tp and tp % self.kv_heads:
            raise AdviceError(
                f"--tp {tp} neither divides the model's {self.kv_heads} key-value heads nor is a multiple"
            )
        split = {name: size // tp for name, size in widths.items()}
        return replace(self, **split, kv_heads=max(1, self.kv_heads // tp))


def shape_of(config: Mapping) -> Shape:
    """The sizes in a Hugging Face config.

    Raises:
        AdviceError: an architecture that the estimate does not know, a size that is missing or not positive.
    """
    kind = config.get("model_type")
    if kind not in DENSE + WITH_EXPERTS:
        known = ", ".join(DENSE + WITH_EXPERTS)
        raise AdviceError(f"config.json: model_type {kind!r} is not one the estimate knows ({known})")
    if config.get("use_sliding_window"):
        raise AdviceError("config.json: use_sliding_window is true; the estimate knows full attention alone")
    hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    layers = _size(config, "num_hidden_layers")
    dense = Shape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=_size(config, "num_key_value_heads", heads),
        head_dim=_size(config, "head_dim", hidden // heads),
        width=_size(config, "intermediate_size"),
        vocab=_size(config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        dense_layers=layers,
    )
    if kind in DENSE:
        return dense
    experts, top_k = _size(config, "num_experts"), _size(config, "num_experts_per_tok")
    if top_k > experts:
        raise AdviceError(f"config.json: num_experts_per_tok {top_k} is more than num_experts {experts}")
    width = _size(config, "moe_intermediate_size")
    return replace(dense, dense_layers=_dense_layers(config, layers), experts=experts, top_k=top_k, expert_width=width)


def _dense_layers(config: Mapping, layers: int) -> int:
    """Layers without experts: transformers' rule for Qwen3-MoE."""
    every, without = _size(config, "decoder_sparse_step", 1), set(config.get("mlp_only_layers") or [])
    return sum(layer in without or bool((layer + 1) % every) for layer in range(layers))


def _size(config: Mapping, key: str, default: int | None = None) -> int:
    size = config.get(key)
    size = default if size is None else size
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise AdviceError(f"config.json: {key} must be a positive whole number, not {size!r}")
    return size
