"""The models by their true shapes: vLLM's config.json, and the names and shapes of the checkpoint's tensors."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Model:
    """Shape of a decoder of the Qwen2.5, Qwen3 or (with experts) Qwen3-MoE architecture.

    Attributes:
        expert_width: intermediate size of one expert; 0 where there are no experts.
        norms: whether queries and keys have norms, as Qwen3's, and no biases; with experts they always do.
        tied: whether the head's weight is the embedding's.
        real: whether people train it; the others are for tests.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocab: int
    epsilon: float
    positions: int
    experts: int = 0
    top_k: int = 0
    expert_width: int = 0
    tied: bool = False
    real: bool = True
    norms: bool = False

    def cut(self, layers: int | None) -> "Model":
        """Return the model with fewer layers; all of them for None.

        Raises:
            ValueError: it has not that many.
        """
        if layers is not None and not 0 < layers <= self.layers:
            raise ValueError(f"{self.name} has 1 to {self.layers} layers, not {layers}")
        return self if layers is None else replace(self, layers=layers)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every checkpoint tensor; a layer's experts as two stacks, as newer trainers hold them."""
        shapes = {"model.embed_tokens.weight": (self.vocab, self.hidden)}
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            shapes |= {f"{prefix}.{leaf}": shape for leaf, shape in self._layer()}
        head = {} if self.tied else {"lm_head.weight": (self.vocab, self.hidden)}
        return shapes | {"model.norm.weight": (self.hidden,), **head}

    def _layer(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "input_layernorm.weight", (self.hidden,)
        for leaf, rows in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
            yield f"self_attn.{leaf}.weight", (rows, self.hidden)
            if not self.has_norms:
                yield f"self_attn.{leaf}.bias", (rows,)
        yield "self_attn.o_proj.weight", (self.hidden, q)
        yield "post_attention_layernorm.weight", (self.hidden,)
        if self.has_norms:
            yield "self_attn.q_norm.weight", (self.head_dim,)
            yield "self_attn.k_norm.weight", (self.head_dim,)
        if self.experts:
            yield "mlp.gate.weight", (self.experts, self.hidden)
            yield "mlp.experts.gate_up_proj", (self.experts, 2 * self.expert_width, self.hidden)
            yield "mlp.experts.down_proj", (self.experts, self.hidden, self.expert_width)
        else:
            yield "mlp.gate_proj.weight", (self.width, self.hidden)
            yield "mlp.up_proj.weight", (self.width, self.hidden)
            yield "mlp.down_proj.weight", (self.hidden, self.width)

    @property
    def has_norms(self) -> bool:
        """True where queries and keys have norms, and no biases."""
        return self.norms or bool(self.experts)

    def config(self) -> dict:
        """Return the model's config.json."""
        name, kind = ("Qwen3", "qwen3") if self.norms else ("Qwen2", "qwen2")
        config = {
            "architectures": ["Qwen3MoeForCausalLM" if self.experts else f"{name}ForCausalLM"],
            "model_type": "qwen3_moe" if self.experts else kind,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.width,
            "vocab_size": self.vocab,
            "hidden_act": "silu",
            "rms_norm_eps": self.epsilon,
            "rope_theta": 1000000.0,
            "max_position_embeddings": self.positions,
            "max_window_layers": self.layers,
            "use_sliding_window": False,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "tie_word_embeddings": self.tied,
            "torch_dtype": "bfloat16",
            "bos_token_id": 0,
            "eos_token_id": 1,
        }
        if self.has_norms:
            config |= {"attention_bias": False, "head_dim": self.head_dim}
        if self.experts:
            config |= {
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
                "moe_intermediate_size": self.expert_width,
                "norm_topk_prob": True,
                "num_experts": self.experts,
                "num_experts_per_tok": self.top_k,
            }
        return config

    def write_config(self, folder: Path) -> Path:
        """Make a folder that vLLM takes for a model, without weights or tokenizer."""
        (folder / "config.json").write_text(json.dumps(self.config(), indent=2))
        return folder


MODELS = {
    model.name: model
    for model in (
        Model("qwen2.5-0.5b", 896, 24, 14, 2, 64, 4864, 151936, 1e-6, 32768, tied=True),
        Model("qwen2.5-7b", 3584, 28, 28, 4, 128, 18944, 152064, 1e-6, 131072),
        Model("qwen3-8b", 4096, 36, 32, 8, 128, 12288, 151936, 1e-6, 40960, norms=True),
        Model("qwen2.5-32b", 5120, 64, 40, 8, 128, 27648, 152064, 1e-5, 131072),
        Model("qwen3-30b-a3b", 2048, 48, 32, 4, 128, 6144, 151936, 1e-6, 40960, 128, 8, 768),
        Model("tiny", 128, 2, 4, 2, 32, 192, 512, 1e-6, 512, real=False),
        Model("tiny-moe", 128, 2, 4, 2, 32, 192, 512, 1e-6, 512, 6, 2, 72, real=False),
    )
}
# As a command line names them: 7b, 30b-a3b.
SHORT = {name.partition("-")[2] if model.real else name: name for name, model in MODELS.items()}


def get_model(name: str) -> Model:
    """Return the model called `name`.

    Raises:
        ValueError: naming those that there are.
    """
    if name not in MODELS:
        raise ValueError(f"no model {name!r}; the benchmark has: {', '.join(MODELS)}")
    return MODELS[name]
