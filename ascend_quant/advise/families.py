"""From a config.json to the sizes of its decoder: what each model_type means by its fields.

A family is known once its count of parameters was compared with the model that transformers builds
(tests/unit/test_advise_families.py). Anything else is refused with the field that is not understood: a size that is
guessed would be believed.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ascend_quant.advise import AdviceError
from ascend_quant.advise.fields import Fields
from ascend_quant.advise.layers import BF16, FLOAT32, Attention, Experts, Feed, Latent, Linear, Mixer, Mlp
from ascend_quant.advise.shapes import Layer, Shape

MOST_LAYERS = 1000  # they are looked at one by one
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
# What changes sizes or work in a way that no family here has; a value that is false, null or 0 is fine.
FOREIGN = (
    "attention_chunk_size",
    "index_topk",
    "num_kv_shared_layers",
    "hidden_size_per_layer_input",
    "layers_block_type",
    "hybrid_override_pattern",
    "block_configs",
    "zero_expert_num",
)
OTHER_TOWERS = {"vision_config": "the vision tower", "audio_config": "the audio tower"}


@dataclass(frozen=True)
class Family:
    """How one model_type is read.

    Attributes:
        pattern: the kind of attention of layer i where layer_types is not there.
        feed: of layer i.
        tied: where tie_word_embeddings is not there.
        latent: multi-head latent attention.
        gated: attention has an output gate.
        defaults: sizes of the class in transformers that published files leave out.
    """

    pattern: Callable[[Fields, int], str]
    feed: Callable[[Fields, int], Feed]
    tied: bool = False
    latent: bool = False
    gated: bool = False
    defaults: Mapping[str, int] = field(default_factory=dict)


def shape_of(config: Mapping[str, Any]) -> Shape:
    """The sizes in a Hugging Face config; of a model of several towers, of the one that writes.

    Raises:
        AdviceError: naming the field that is missing, is none, or is not understood.
    """
    fields = _decoder(config)
    family = _family(fields)
    fields = replace(fields, values={**family.defaults, **fields.values})
    for key in FOREIGN:
        if fields.values.get(key):
            raise fields.wrong(key, f"{fields.values[key]!r:.80} is not understood by the estimate")
    depth = fields.size("num_hidden_layers")
    if depth > MOST_LAYERS:
        raise fields.wrong("num_hidden_layers", f"must be at most {MOST_LAYERS}, not {depth}")
    layers = Counter(
        (_mixer(fields, family, kind), family.feed(fields, i)) for i, kind in enumerate(_kinds(fields, family))
    )
    left_out = [name for key, name in OTHER_TOWERS.items() if config.get(key)]
    if fields.values.get("num_nextn_predict_layers"):
        left_out.append("the layers of multi-token prediction")
    return Shape(
        hidden=fields.size("hidden_size"),
        vocab=fields.size("vocab_size"),
        tied=Fields(config).flag("tie_word_embeddings", fields.flag("tie_word_embeddings", family.tied)),
        layers=tuple(Layer(mixer, feed, times) for (mixer, feed), times in layers.items()),
        left_out=tuple(left_out),
    )


def _decoder(config: Mapping[str, Any]) -> Fields:
    text = config.get("text_config")
    if text is None:
        return Fields(config)
    if not isinstance(text, Mapping):
        raise AdviceError(f"config.json: text_config must be a JSON object, not {text!r:.80}")
    return Fields(text, "text_config.")


def _family(fields: Fields) -> Family:
    kind = fields.values.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise fields.wrong("model_type", f"{kind!r:.80} is not one the estimate knows ({known})")
    family = FAMILIES[kind]
    if family.feed is _mlp and (found := next((key for key in COUNTS if fields.values.get(key)), None)):
        raise fields.wrong(found, f"{fields.values[found]!r:.80}, where model_type {kind} has no experts")
    return family


def _kinds(fields: Fields, family: Family) -> list[str]:
    """The kind of attention of each layer."""
    depth = fields.size("num_hidden_layers")
    given = fields.kinds("layer_types", (FULL, SLIDING, LINEAR), depth)
    return given or [family.pattern(fields, layer) for layer in range(depth)]


def _mixer(fields: Fields, family: Family, kind: str) -> Mixer:
    if kind == LINEAR:
        return _linear(fields)
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    if family.latent:
        return Latent(
            heads=heads,
            q_rank=fields.size("q_lora_rank", default=None),
            kv_rank=fields.size("kv_lora_rank"),
            nope=fields.size("qk_nope_head_dim"),
            rope=fields.size("qk_rope_head_dim"),
            value_dim=fields.size("v_head_dim"),
        )
    kv_heads = fields.size("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise fields.wrong("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads {heads}")
    if fields.values.get("head_dim") is None and hidden % heads:
        raise fields.wrong("num_attention_heads", f"{heads} does not divide hidden_size {hidden}")
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=fields.size("head_dim", default=hidden // heads),
        window=fields.size("sliding_window") if kind == SLIDING else None,
        gated=family.gated,
    )


def _linear(fields: Fields) -> Linear:
    key_heads, value_heads = fields.size("linear_num_key_heads"), fields.size("linear_num_value_heads")
    if value_heads % key_heads:
        raise fields.wrong("linear_num_key_heads", f"{key_heads} does not divide linear_num_value_heads {value_heads}")
    state = fields.values.get("mamba_ssm_dtype")
    if state not in (None, "bfloat16", "float32"):
        raise fields.wrong("mamba_ssm_dtype", f"{state!r:.80} is not understood; known: bfloat16, float32")
    return Linear(
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=fields.size("linear_key_head_dim"),
        value_dim=fields.size("linear_value_head_dim"),
        kernel=fields.size("linear_conv_kernel_dim"),
        state_bytes=FLOAT32 if state == "float32" else BF16,
    )


def _full(fields: Fields, layer: int) -> str:
    if fields.values.get("sliding_window") and fields.flag("use_sliding_window", default=True):
        raise fields.wrong(
            "sliding_window", "is there without layer_types, which says of each layer whether it has one"
        )
    return FULL


def _all_sliding(fields: Fields, layer: int) -> str:
    return SLIDING if fields.values.get("sliding_window") is not None else FULL


def _last_sliding(fields: Fields, layer: int) -> str:
    """Qwen's: the layers from max_window_layers on."""
    if not fields.flag("use_sliding_window") or fields.values.get("sliding_window") is None:
        return FULL
    return SLIDING if layer >= fields.size("max_window_layers", default=0, least=0) else FULL


def _each_second_sliding(fields: Fields, layer: int) -> str:
    return FULL if layer % 2 else SLIDING


def _gemma3(fields: Fields, layer: int) -> str:
    every = fields.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return SLIDING if (layer + 1) % every else FULL


def _each_fourth_full(fields: Fields, layer: int) -> str:
    """Qwen3-Next's, whose other layers are linear."""
    return LINEAR if (layer + 1) % fields.size("full_attention_interval", default=4) else FULL


def _mlp(fields: Fields, layer: int) -> Feed:
    return Mlp(fields.size("intermediate_size"))


def _is_sparse(fields: Fields, layer: int, otherwise: bool) -> bool:
    kinds = fields.kinds("mlp_layer_types", ("dense", "sparse"), fields.size("num_hidden_layers"))
    return otherwise if kinds is None else kinds[layer] == "sparse"


def _experts(fields: Fields, width: str, shared: int = 0, gate: bool = False) -> Experts:
    experts, top_k = fields.size(*COUNTS[:3]), fields.size("num_experts_per_tok")
    if top_k > experts:
        raise fields.wrong("num_experts_per_tok", f"{top_k} is more than the {experts} experts that there are")
    return Experts(experts, top_k, fields.size(width), shared, gate and shared > 0)


def _qwen_experts(fields: Fields, layer: int) -> Feed:
    without = fields.numbers("mlp_only_layers", below=fields.size("num_hidden_layers"))
    every = fields.size("decoder_sparse_step", default=1)
    if not _is_sparse(fields, layer, layer not in without and (layer + 1) % every == 0):
        return _mlp(fields, layer)
    shared = fields.size("shared_expert_intermediate_size", default=0, least=0)
    return _experts(fields, "moe_intermediate_size", shared, gate=True)


def _deepseek_experts(fields: Fields, layer: int) -> Feed:
    if (every := fields.size("moe_layer_freq", default=1)) != 1:
        raise fields.wrong("moe_layer_freq", f"{every} is not understood; known: 1")
    if not _is_sparse(fields, layer, layer >= fields.size("first_k_dense_replace", default=0, least=0)):
        return _mlp(fields, layer)
    shared = fields.size("n_shared_experts", default=0, least=0) * fields.size("moe_intermediate_size")
    return _experts(fields, "moe_intermediate_size", shared)


def _mixtral_experts(fields: Fields, layer: int) -> Feed:
    return _experts(fields, "intermediate_size")


_QWEN = Family(_last_sliding, _mlp)
_QWEN_MOE = Family(_last_sliding, _qwen_experts)
_DEEPSEEK = Family(_full, _deepseek_experts, latent=True)
_GEMMA3 = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208}
FAMILIES = {
    **dict.fromkeys(("llama", "exaone4", "glm", "glm4", "granite", "ministral3"), Family(_full, _mlp)),
    **dict.fromkeys(("olmo", "olmo2", "olmo3", "seed_oss"), Family(_full, _mlp)),
    **dict.fromkeys(("cohere", "cohere2", "ernie4_5", "smollm3"), Family(_full, _mlp, tied=True)),
    **dict.fromkeys(("mistral", "phi3"), Family(_all_sliding, _mlp)),
    **dict.fromkeys(("qwen2", "qwen3", "qwen3_vl_text", "qwen2_vl", "qwen2_vl_text"), _QWEN),
    **dict.fromkeys(("qwen2_5_vl", "qwen2_5_vl_text"), _QWEN),
    "gemma": Family(_full, _mlp, tied=True),
    "gemma2": Family(_each_second_sliding, _mlp, tied=True),
    "gemma3_text": Family(_gemma3, _mlp, tied=True, defaults=_GEMMA3),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "qwen3_vl_moe_text"), _QWEN_MOE),
    "mixtral": Family(_all_sliding, _mixtral_experts),
    **dict.fromkeys(("granitemoe", "minimax_m2", "olmoe"), Family(_full, _mixtral_experts)),
    "gpt_oss": Family(_each_second_sliding, _mixtral_experts),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2"), _DEEPSEEK),
    **dict.fromkeys(("glm4_moe", "glm4v_moe_text", "dots1"), Family(_full, _deepseek_experts)),
    "qwen3_5_text": Family(_each_fourth_full, _mlp, gated=True),
    **dict.fromkeys(("qwen3_next", "qwen3_5_moe_text"), Family(_each_fourth_full, _qwen_experts, gated=True)),
}
