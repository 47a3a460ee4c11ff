"""Sizes read from config.json against the models that transformers builds of it, on the meta device: no weights.

The sizes of public models are set in transformers' own config classes, and what these write is read.
"""

import json
import re
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="whose models these are")
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from ascend_quant.advise import AdviceError, steps
from ascend_quant.advise.devices import H200
from ascend_quant.advise.engines import Engine
from ascend_quant.advise.families import FAMILIES, shape_of
from ascend_quant.advise.memory import cache_bytes
from ascend_quant.advise.operators import operators
from ascend_quant.advise.serving import BF16


def sizes(hidden, layers, heads, kv_heads, width, vocab, **others):
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": width,
        "vocab_size": vocab,
        **others,
    }


def experts(count, top_k, width, **others):
    return {"num_experts": count, "num_experts_per_tok": top_k, "moe_intermediate_size": width, **others}


def deepseek(count, top_k, width, shared, dense, kv_rank=512, q_rank=None):
    return {
        "n_routed_experts": count,
        "num_experts_per_tok": top_k,
        "moe_intermediate_size": width,
        "n_shared_experts": shared,
        "first_k_dense_replace": dense,
        "kv_lora_rank": kv_rank,
        "q_lora_rank": q_rank,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }


# Of public models, by model_type; what is left out is the class's own.
PUBLIC = {
    "Llama-3.1-8B": ("llama", sizes(4096, 32, 32, 8, 14336, 128256)),
    "Llama-3.2-1B": ("llama", sizes(2048, 16, 32, 8, 8192, 128256, head_dim=64, tie_word_embeddings=True)),
    "Qwen2.5-7B": ("qwen2", sizes(3584, 28, 28, 4, 18944, 152064)),
    "Qwen3-4B": ("qwen3", sizes(2560, 36, 32, 8, 9728, 151936, head_dim=128, tie_word_embeddings=True)),
    "Mistral-7B-v0.1": ("mistral", {}),
    "Phi-3-mini-4k": ("phi3", sizes(3072, 32, 32, 32, 8192, 32064, sliding_window=2047)),
    "gemma-7b": ("gemma", {}),
    "gemma-2-9b": ("gemma2", sizes(3584, 42, 16, 8, 14336, 256000)),
    "gemma-3-1b": ("gemma3_text", sizes(1152, 26, 4, 1, 6912, 262144, sliding_window=512)),
    "GLM-4-9B-0414": ("glm4", {}),
    "glm-4-9b-hf": ("glm", {}),
    "GLM-4.7-Flash": ("glm4_moe_lite", {}),
    "EXAONE-4.0-32B": ("exaone4", sizes(5120, 64, 40, 8, 27392, 102400, head_dim=128)),
    "ERNIE-4.5-0.3B": ("ernie4_5", {}),
    "Ministral-3-8B": ("ministral3", {}),
    "Command-R": ("cohere", {}),
    "Command-R7B": ("cohere2", sizes(4096, 32, 32, 8, 14336, 256000)),
    "granite-3.0-3b-a800m": (
        "granitemoe",
        sizes(1536, 32, 24, 8, 512, 49155, num_local_experts=40, num_experts_per_tok=8, tie_word_embeddings=True),
    ),
    "OLMo-7B": ("olmo", {}),
    "granite-3.1-8b": ("granite", sizes(4096, 40, 32, 8, 12800, 49155, tie_word_embeddings=True)),
    "OLMo-2-7B": ("olmo2", sizes(4096, 32, 32, 32, 11008, 100352)),
    "Olmo-3-7B": ("olmo3", sizes(4096, 32, 32, 32, 11008, 100278)),
    "Seed-OSS-36B": ("seed_oss", sizes(5120, 64, 80, 8, 27648, 155136, head_dim=128)),
    "SmolLM3-3B": ("smollm3", {}),
    "Mixtral-8x7B": ("mixtral", {}),
    "OLMoE-1B-7B": ("olmoe", {}),
    "Qwen1.5-MoE-A2.7B": ("qwen2_moe", {}),
    "Qwen3-30B-A3B": ("qwen3_moe", sizes(2048, 48, 32, 4, 6144, 151936, head_dim=128, **experts(128, 8, 768))),
    "Qwen3-235B-A22B": ("qwen3_moe", sizes(4096, 94, 64, 4, 12288, 151936, head_dim=128, **experts(128, 8, 1536))),
    "gpt-oss-20b": ("gpt_oss", {"num_hidden_layers": 24, "layer_types": None, "num_local_experts": 32}),
    "MiniMax-M2": ("minimax_m2", {}),
    "GLM-4.5-Air": ("glm4_moe", {"head_dim": 128}),
    "dots.llm1": ("dots1", sizes(4096, 62, 32, 32, 10944, 152064, **deepseek(128, 6, 1408, 2, 1))),
    "DeepSeek-V2-Lite": ("deepseek_v2", sizes(2048, 27, 16, 16, 10944, 102400, **deepseek(64, 6, 1408, 2, 1))),
    "DeepSeek-V3": ("deepseek_v3", {}),
    "Moonlight-16B-A3B": ("deepseek_v3", sizes(2048, 27, 16, 16, 11264, 163840, **deepseek(64, 6, 1408, 2, 1))),
    "Kimi-K2": (
        "deepseek_v3",
        sizes(7168, 61, 64, 64, 18432, 163840, **deepseek(384, 8, 2048, 1, 1, q_rank=1536)),
    ),
    "Qwen3-Next-80B-A3B": ("qwen3_next", {}),
    "Qwen3.5-9B": ("qwen3_5_text", {}),
    "Qwen3.5-35B-A3B": ("qwen3_5_moe_text", {}),
}
TOWERS = {  # models that see, too: config.json has a text_config
    "Qwen2.5-VL-7B": ("qwen2_5_vl", sizes(3584, 28, 28, 4, 18944, 152064)),
    "Qwen2-VL-7B": ("qwen2_vl", sizes(3584, 28, 28, 4, 18944, 152064)),
    "Qwen3-VL-30B-A3B": ("qwen3_vl_moe", sizes(2048, 48, 32, 4, 6144, 151936, head_dim=128, **experts(128, 8, 768))),
    "Qwen3-VL-8B": ("qwen3_vl", sizes(4096, 36, 32, 8, 12288, 151936, head_dim=128)),
    "GLM-4.5V": ("glm4v_moe", {"head_dim": 128}),
    "gemma-3-27b": ("gemma3", sizes(5376, 62, 32, 16, 21504, 262208, head_dim=128, sliding_window=1024)),
    "Mistral-Small-3.1-24B": (
        "mistral3",
        {**sizes(5120, 40, 32, 8, 32768, 131072, head_dim=128, sliding_window=None), "model_type": "mistral"},
    ),
}


def config_of(kind, values):
    return transformers.models.auto.configuration_auto.CONFIG_MAPPING[kind](**values)


@cache
def public(name):
    """The config and its config.json, as transformers writes it."""
    if name in PUBLIC:
        config = config_of(*PUBLIC[name])
    else:
        kind, values = TOWERS[name]
        config = config_of(kind, {"text_config": values})
    return config, json.loads(config.to_json_string())


def matrices_of(model):
    """Elements of what has two dimensions or more, of the tower that writes."""
    seen = [tensor for name, tensor in model.named_parameters() if "visual" not in name and "vision" not in name]
    named = {id(tensor): tensor for tensor in seen}
    biases = {id(tensor) for name, tensor in model.named_parameters() if name.endswith("bias")}
    projector = {id(t) for n, t in model.named_parameters() if "projector" in n}
    return sum(t.numel() for key, t in named.items() if t.ndim > 1 and key not in biases | projector)


@pytest.mark.parametrize("name", [*PUBLIC, *TOWERS])
def test_parameters_are_those_of_the_model(name):
    config, written = public(name)
    builder = transformers.AutoModelForCausalLM if name in PUBLIC else transformers.AutoModelForImageTextToText
    with torch.device("meta"):
        theirs = builder.from_config(config)
    found = shape_of(written)
    assert found.parameters() == matrices_of(theirs)
    assert found.left_out == (() if name in PUBLIC else ("the vision tower",))


def test_every_family_was_compared():
    kinds = {public(name)[1].get("text_config", public(name)[1])["model_type"] for name in (*PUBLIC, *TOWERS)}
    elsewhere = {"kimi_k2", "qwen2_vl", "qwen2_5_vl"}  # DeepSeek-V3's under another name; files without a text_config
    assert kinds == set(FAMILIES) - elsewhere


@pytest.mark.parametrize("page", ["advise.md", "advise.zh.md"])
def test_the_pages_name_every_family(page):
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    named = text[text.index("text_config") :].split("\n\n")[1]
    assert re.findall(r"`(\w+)`", named) == list(FAMILIES)


def test_other_names_for_the_same():
    _, kimi = public("Kimi-K2")
    assert shape_of({**kimi, "model_type": "kimi_k2"}) == shape_of(kimi)
    _, seeing = public("Qwen2.5-VL-7B")  # transformers 4 wrote the text's sizes beside the vision_config
    flat = {**seeing["text_config"], "model_type": "qwen2_5_vl", "vision_config": seeing["vision_config"]}
    assert shape_of(flat) == shape_of(seeing)
    _, qwen = public("Qwen3-30B-A3B")
    assert "num_local_experts" in qwen and "num_experts" not in qwen  # as transformers 5 writes it
    older = {**qwen, "num_experts": qwen["num_local_experts"]}
    del older["num_local_experts"]
    assert shape_of(older) == shape_of(qwen)


@pytest.mark.parametrize("name", ["gemma-2-9b", "gemma-3-1b", "gpt-oss-20b", "Qwen3-Next-80B-A3B", "Qwen3.5-9B"])
def test_layer_types_that_older_files_leave_out(name):
    _, written = public(name)
    older = {key: value for key, value in written.items() if key != "layer_types"}
    assert shape_of(older) == shape_of(written)


def test_sizes_that_published_files_leave_out():
    """google/gemma-3-4b-it's text_config."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    theirs = config_of("gemma3", {"text_config": text})
    given = {"model_type": "gemma3", "text_config": {**text, "model_type": "gemma3_text"}}
    assert shape_of(given).layers == shape_of(json.loads(theirs.to_json_string())).layers
    assert sorted(layer.times for layer in shape_of(given).layers) == [5, 29] and shape_of(given).tied


def test_windows_where_no_layer_types_are():
    _, qwen = public("Qwen2.5-7B")
    older = {key: value for key, value in qwen.items() if key != "layer_types"}
    older |= {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}
    theirs = transformers.Qwen2Config(**{key: value for key, value in older.items() if key != "model_type"})
    windows = {layer.mixer.window: layer.times for layer in shape_of(older).layers}
    assert windows == {
        None: theirs.layer_types.count("full_attention"),
        4096: theirs.layer_types.count("sliding_attention"),
    }
    _, mistral = public("Mistral-7B-v0.1")
    assert [layer.mixer.window for layer in shape_of(mistral).layers] == [4096]


# DeepSeek-AI, "Insights into DeepSeek-V3", ISCA 2025, table 1: KB of cache a token, BF16.
@pytest.mark.parametrize(
    ("kind", "values", "published"),
    [
        ("deepseek_v3", {}, 70.272),
        ("qwen2", sizes(8192, 80, 64, 8, 29568, 152064), 327.680),
        ("llama", sizes(16384, 126, 128, 8, 53248, 128256), 516.096),
    ],
)
def test_published_cache_of_a_token(kind, values, published):
    engine = Engine(shape_of(json.loads(config_of(kind, values).to_json_string())), BF16, H200)
    assert cache_bytes(engine, 1) == published * 1000


TINY = sizes(32, 4, 4, 2, 32, 32, head_dim=16, layer_types=None)
LINEAR = {f"linear_{name}": size for name, size in (("num_key_heads", 2), ("num_value_heads", 4), ("key_head_dim", 8))}
HYBRID = {**TINY, **experts(4, 2, 16), **LINEAR, "linear_value_head_dim": 8, "shared_expert_intermediate_size": 16}


@pytest.mark.parametrize(("kind", "values"), [("qwen3_next", HYBRID), ("gemma2", {**TINY, "sliding_window": 8})])
def test_what_is_kept_of_a_sequence(kind, values):
    """Against the cache that transformers fills, with full attention, a window, a linear state."""
    config, tokens, elements = config_of(kind, values), 12, 0
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        kept = model(torch.arange(tokens)[None], use_cache=True).past_key_values
    for layer in kept.layers:
        if hasattr(layer, "recurrent_states"):  # of the convolution's inputs theirs has one that is not needed any more
            elements += layer.recurrent_states.numel() + layer.conv_states.numel() * 3 // 4
        else:  # of a window theirs has all but the row's own
            own = tokens > layer.keys.shape[2] and layer.keys[0, :, 0].numel()
            elements += layer.keys.numel() + layer.values.numel() + 2 * own
    engine = Engine(shape_of(json.loads(config.to_json_string())), BF16, H200)
    assert cache_bytes(engine, tokens) == 2 * elements


MLA = {**sizes(64, 2, 4, 4, 96, 32), **deepseek(4, 2, 16, 1, 2, kv_rank=24)}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("llama", TINY),
        ("deepseek_v3", MLA),
        ("deepseek_v3", {**MLA, "q_lora_rank": 40}),
        ("qwen2", sizes(64, 2, 4, 2, 96, 32)),
    ],
)
def test_operations_of_a_prompt(kind, values):
    """Against torch's count of what the model multiplies; it counts what causal attention masks, too."""
    config, tokens = config_of(kind, values), 10
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, tokens, dtype=torch.long), logits_to_keep=1)
    theirs = counter.get_flop_counts()["Global"]
    batched = theirs.pop(torch.ops.aten.bmm)
    found = list(
        operators(Engine(shape_of(json.loads(config.to_json_string())), BF16, H200), steps.prefill(tokens, tokens))
    )
    ours = {part: sum(each.times * each.operations for each in found if each.part == part) for part in steps.PARTS}
    attention = ours.pop(steps.ATTENTION) * 2 * tokens / (tokens + 1)
    rotation = 2 * tokens * batched_rotation(config)
    assert attention == pytest.approx(batched - rotation)
    assert sum(ours.values()) == pytest.approx(sum(theirs.values()))


def batched_rotation(config):
    """Angles of the rotary embedding, which transformers multiplies as a product."""
    return (getattr(config, "qk_rope_head_dim", None) or getattr(config, "head_dim", None) or 16) // 2


def changed(name, **changes):
    return {**public(name)[1], **changes}


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (lambda: changed("Llama-3.1-8B", model_type="mamba2"), "model_type 'mamba2'"),
        (lambda: changed("DeepSeek-V3", index_topk=2048), "index_topk 2048"),
        (lambda: changed("DeepSeek-V3", moe_layer_freq=2), "moe_layer_freq 2"),
        (lambda: changed("DeepSeek-V3", kv_lora_rank=None), "kv_lora_rank"),
        (lambda: changed("DeepSeek-V3", num_experts_per_tok=300), "num_experts_per_tok 300"),
        (lambda: changed("Llama-3.1-8B", attention_chunk_size=8192), "attention_chunk_size"),
        (lambda: changed("Llama-3.1-8B", num_local_experts=8), "num_local_experts 8"),
        (lambda: changed("Llama-3.1-8B", sliding_window=4096), "sliding_window"),
        (lambda: changed("Qwen2.5-7B", layer_types=["full_attention"] * 27), "layer_types"),
        (lambda: changed("Qwen2.5-7B", layer_types=["chunked_attention"] * 28), "layer_types 'chunked_attention'"),
        (lambda: changed("Qwen2.5-7B", layer_types=["sliding_attention"] * 28), "sliding_window"),
        (lambda: changed("Qwen3-Next-80B-A3B", linear_num_key_heads=5), "linear_num_key_heads 5"),
        (lambda: changed("Qwen3-Next-80B-A3B", mamba_ssm_dtype="float16"), "mamba_ssm_dtype 'float16'"),
        (lambda: changed("Qwen3-VL-8B", text_config=[1]), "text_config"),
        (
            lambda: changed("Qwen3-VL-8B", text_config={"model_type": "qwen3_vl_text"}),
            r"text_config\.num_hidden_layers",
        ),
        (lambda: changed("GLM-4.5-Air", mlp_layer_types=["dense"]), "mlp_layer_types"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(config, field):
    with pytest.raises(AdviceError, match=rf"config\.json: {field}"):
        shape_of(config())


def test_layers_with_experts_as_newer_files_say_it():
    kinds = ["dense", *["sparse"] * 44, "dense"]
    shape = shape_of(changed("GLM-4.5-Air", mlp_layer_types=kinds))
    assert sorted(layer.times for layer in shape.layers) == [2, 44]
