"""A decoder's sizes, from its config.json, and the load of one engine, which a recipe may define, for `advise`.

Supported are decoders with full attention and GQA, dense or with experts in every layer. Other models are refused,
since guessed sizes would be misleading.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ascend_quant.advise import AdviceError
from ascend_quant.files.documents import read_json
from ascend_quant.recipes import RecipeError, leaves, nearest, prefix, shipped
from ascend_quant.recipes.keys import RANKS, ROLLOUT

BF16, CODE, SCALE = 2, 1, 4  # bytes of a BF16 element, an 8-bit code, and a float32 scale
FULL_ATTENTION = "full_attention"
DENSE = ("llama", "mistral", "qwen2", "qwen3", "granite", "olmo2", "seed_oss", "glm4")
EXPERTS = ("mixtral", "olmoe", "qwen3_moe")
TRAIN_BATCH_SIZE = 1024  # verl's
SAMPLING = "algorithm.filter_groups"
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")

Matrix = tuple[int, int]  # K, N of x_MK @ w_NK.T


@dataclass(frozen=True)
class Model:
    """A decoder, or one device's share of it.

    Attributes:
        tied: whether the head is tied to the embedding.
        width: intermediate size of the MLP, or of one expert.
        experts: number of experts per layer; 0 in a dense model.
        top_k: number of experts per token.
    """

    hidden: int
    vocab: int
    tied: bool
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    experts: int = 0
    top_k: int = 0

    def attention(self) -> tuple[Matrix, Matrix]:
        """The projections of one layer: fused queries, keys and values, and the output."""
        queries = self.heads * self.head_dim
        return (self.hidden, queries + 2 * self.kv_heads * self.head_dim), (queries, self.hidden)

    def mlp(self) -> tuple[Matrix, Matrix]:
        """Gate and up in one product, and down; of one expert if there are experts."""
        return (self.hidden, 2 * self.width), (self.width, self.hidden)

    def weight_bytes(self, scheme: str) -> int:
        """Return the size of the weights in bytes; an INT8 matrix has one byte per element and a float32 scale per row.

        Embedding, head and routers stay BF16. Norms and biases (0.01 %) are ignored.
        """
        kept = (1 if self.tied else 2) * self.vocab * self.hidden + self.layers * self.hidden * self.experts
        matrices = [*self.attention(), *(self.experts or 1) * self.mlp()]
        item, scale = (BF16, 0) if scheme == "bf16" else (CODE, SCALE)
        return BF16 * kept + self.layers * sum((item * k + scale) * n for k, n in matrices)

    def cache_bytes(self, cache: str) -> int:
        """Return the bytes of one token's keys and values; an INT8 cache has a float32 scale per key and value head."""
        head = BF16 * self.head_dim if cache == "bf16" else CODE * self.head_dim + SCALE
        return self.layers * 2 * self.kv_heads * head

    def on_each_of(self, devices: int) -> "Model":
        """Return one device's share with this tensor-parallel size; few key/value heads are replicated.

        Raises:
            AdviceError: heads or widths are not divisible.
        """
        if self.heads % devices or self.width % devices or (self.kv_heads % devices and devices % self.kv_heads):
            sizes = f"{self.heads} heads, {self.kv_heads} key-value heads and an intermediate size of {self.width}"
            raise AdviceError(f"--tp {devices} does not divide the model, which has {sizes}")
        return replace(
            self,
            heads=self.heads // devices,
            kv_heads=max(1, self.kv_heads // devices),
            width=self.width // devices,
            vocab=-(-self.vocab // devices),
        )


def read_model(place: str) -> Model:
    """Read a model's sizes from a folder, a config.json, or the Hugging Face hub (only config.json is downloaded).

    Raises:
        AdviceError: there is no model, or `model_of` does not support it.
    """
    from huggingface_hub import hf_hub_download

    path = Path(place)
    try:
        if "/" not in place and not path.exists():
            known = nearest(place, [file.stem for file in shipped().glob("*.yaml")])
            raise AdviceError(f"{place!r} is neither a folder, nor a file, nor a recipe: {known}")
        if HUB_ID.fullmatch(place) and not path.exists():
            path = Path(hf_hub_download(place, "config.json"))
        return model_of(read_json(path / "config.json" if path.is_dir() else path))
    except (OSError, ValueError) as error:  # the hub's errors are subclasses of these
        if isinstance(error, AdviceError):
            raise
        wanted = "give a folder, a config.json, a hub id, a recipe or its .yaml file"
        raise AdviceError(f"{place}: {error}; {wanted}") from error


def model_of(config: Mapping[str, Any]) -> Model:
    """Return the sizes in a Hugging Face config.

    Raises:
        AdviceError: a field is missing, wrong, or not supported; the message names it.
    """
    kind = config.get("model_type")
    if kind not in DENSE + EXPERTS:
        known = ", ".join(DENSE + EXPERTS)
        raise AdviceError(f"config.json: model_type {kind!r:.80} is not supported by the estimate; supported: {known}")
    layers = _size(config, "num_hidden_layers")
    if config.get("layer_types") not in (None, [FULL_ATTENTION] * layers):
        raise AdviceError(f"config.json: layer_types: the estimate supports only {FULL_ATTENTION} in every layer")
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        raise AdviceError("config.json: sliding_window is set; the estimate supports full attention only")
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise AdviceError(
            "config.json: mlp_only_layers or decoder_sparse_step leaves layers without experts; the estimate needs "
            "them in every layer"
        )
    hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    model = Model(
        hidden=hidden,
        vocab=_size(config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings")),
        layers=layers,
        heads=heads,
        kv_heads=_size(config, "num_key_value_heads", default=heads),
        head_dim=_size(config, "head_dim", default=hidden // heads),
        width=_size(config, "moe_intermediate_size" if kind == "qwen3_moe" else "intermediate_size"),
        experts=_size(config, "num_experts", "num_local_experts") if kind in EXPERTS else 0,
        top_k=_size(config, "num_experts_per_tok") if kind in EXPERTS else 0,
    )
    if model.top_k > model.experts:
        raise AdviceError(f"config.json: num_experts_per_tok {model.top_k} is more than {model.experts} experts")
    return model


def _size(config: Mapping[str, Any], *keys: str, default: int | None = None) -> int:
    """Return the integer under the first of these keys that the file has."""
    key = next((key for key in keys if config.get(key) is not None), keys[0])
    value = default if config.get(key) is None else config[key]
    if type(value) is not int or value < 1:
        raise AdviceError(f"config.json: {key} must be a positive integer, not {value!r:.80}")
    return value


@dataclass(frozen=True)
class Workload:
    """A batch of rollouts in one engine.

    Attributes:
        tp: tensor-parallel size.
        batch: sequences in flight.
        inputs, outputs: tokens per prompt and per answer.
        memory: fraction of device memory for the engine (`gpu_memory_utilization`).
    """

    tp: int = 1
    batch: int = 64
    inputs: int = 256
    outputs: int = 512
    memory: float = 0.9


def is_recipe(place: str) -> bool:
    """Return whether a place is a recipe's: a .yaml file, or the name of a shipped one."""
    return place.endswith(".yaml") or ("/" not in place and (shipped() / f"{place}.yaml").is_file())


def read_recipe(place: str) -> tuple[str, Workload]:
    """The model, and the load of one engine where every answer is as long as the recipe allows.

    Args:
        place: the recipe's name or .yaml file.

    Raises:
        AdviceError: the recipe does not compose, or lacks a setting that is needed here.
    """
    from ascend_quant.recipes.compose import alone, plain
    from ascend_quant.recipes.node import node_of

    try:
        tree = plain(alone(place))
        node, settings = node_of(tree), dict(leaves(tree))
        in_flight = f"{SAMPLING}.max_inflight_gen_batches"
        batches = settings.get(in_flight, 1) if settings.get(f"{SAMPLING}.enable") else 1
        sequences = settings.get("data.train_batch_size", TRAIN_BATCH_SIZE) * batches * settings[f"{ROLLOUT}.n"]
        ranks, engines = (
            settings[RANKS],
            settings.get(f"{ROLLOUT}.n_gpus_per_node", settings["trainer.n_gpus_per_node"]),
        )
        workload = Workload(
            tp=ranks,
            batch=-(-sequences // max(1, settings["trainer.nnodes"] * engines // ranks)),
            inputs=settings["data.max_prompt_length"],
            outputs=settings["data.max_response_length"],
            memory=settings[f"{ROLLOUT}.gpu_memory_utilization"],
        )
    except RecipeError as error:
        raise AdviceError(f"{prefix(place, error)}{error}") from error
    except (KeyError, TypeError) as error:
        raise AdviceError(f"{place} is not a complete recipe ({error!r})") from error
    return node.model.place, workload
