"""One list of layers to ignore means the same layers to the engine, to both trainers and to convert.

The independent side is vLLM's own should_ignore_layer with what its models fuse. It knows no expressions for
fused names, so for these it is given what they stand for.
"""

import ast
import re
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="its own rule is what ours is compared with")

import torch
import transformers
import vllm
from torch import nn
from vllm.model_executor.layers.quantization.compressed_tensors.utils import should_ignore_layer

from ascend_quant.integrations.vllm.config import AscendQuantConfig
from ascend_quant.qat import apply_fake_quantization
from ascend_quant.refit import RefitError
from ascend_quant.schemes.layer_names import (
    FUSED,
    Ignored,
    PatternError,
    Unquantized,
    from_megatron,
    keeps_its_dtype,
    layers_of,
)

SIZES = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 16}
EXPERTS = {"moe_intermediate_size": 64, "num_experts_per_tok": 2}
LATENT = {"kv_lora_rank": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 32}
DEEPSEEK = {**SIZES, **EXPERTS, **LATENT, "n_routed_experts": 4, "n_group": 1, "topk_group": 1}
ATTENTION = ("self_attn.qkv_proj", "self_attn.o_proj")
DENSE = ("mlp.gate_up_proj", "mlp.down_proj")
LATENT_ATTENTION = ("self_attn.fused_qkv_a_proj", "self_attn.q_b_proj", "self_attn.kv_b_proj", "self_attn.o_proj")
SHARED = ("mlp.shared_experts.gate_up_proj", "mlp.shared_experts.down_proj", "mlp.experts")
MODELS = {  # transformers' model, and the engine's layers of its first and its second decoder layer
    "qwen2": (lambda: transformers.Qwen2Config(**SIZES, num_key_value_heads=1), (ATTENTION + DENSE,) * 2),
    "qwen3-moe": (
        lambda: transformers.Qwen3MoeConfig(**SIZES, **EXPERTS, num_key_value_heads=1, head_dim=32, num_experts=4),
        ((*ATTENTION, "mlp.experts"),) * 2,
    ),
    "deepseek-v3": (
        lambda: transformers.DeepseekV3Config(**DEEPSEEK, q_lora_rank=64, first_k_dense_replace=1),
        (LATENT_ATTENTION + DENSE, LATENT_ATTENTION + SHARED),
    ),
    "moonlight": (  # latent attention whose q_proj nothing is fused with
        lambda: transformers.DeepseekV3Config(**DEEPSEEK, q_lora_rank=None, first_k_dense_replace=1),
        tuple(
            ("self_attn.q_proj", "self_attn.kv_a_proj_with_mqa", *LATENT_ATTENTION[2:], *rest)
            for rest in (DENSE, SHARED)
        ),
    ),
}
PATTERNS = {  # as we take it: as vLLM would need it, for linear layers
    "model.layers.0.mlp.gate_up_proj": None,
    r"re:.*gate_up_proj": r"re:.*(gate|up)_proj",
    r"re:.*\.(gate|up)_proj": None,
    r"re:.*mlp\.(gate|up)_proj": None,
    r"re:.*gate_proj": None,
    "model.layers.0.self_attn.q_proj": None,
    "model.layers.1.self_attn.qkv_proj": None,
    r"re:.*qkv_proj": r"re:.*\.[qkv]_proj",
    r"re:.*\.[qkv]_proj": None,
    "model.layers.0.self_attn.fused_qkv_a_proj": None,
    r"re:.*fused_qkv_a_proj": r"re:.*(q_a_proj|kv_a_proj_with_mqa)",
    r"re:.*kv_a_proj": r"re:.*(q_a_proj|kv_a_proj_with_mqa)",  # fused_qkv_a_proj, too
    r"re:.*\.kv_a_proj": None,
    r"re:.*self_attn.*": None,
    r"re:.*layers\.1\..*": None,
    r"re:.*\.1\.": None,  # a layer, and an expert
    r"re:.*down_proj": None,
    r"re:.*experts": None,
    r"re:.*\.experts\.": None,
    "model.layers.1.mlp.experts": None,
    "model.layers.1.mlp.experts.3.up_proj": None,
    r"re:.*shared_experts": None,
    r"re:.*mlp\.gate$": None,
    r"re:model\.layers\.0\.": None,
    "model.layers.0": None,
    "lm_head": None,
}
OUTCOMES = {"a part", "nothing"}


def layers_in(model: str) -> list[str]:
    return [f"model.layers.{i}.{name}" for i, names in enumerate(MODELS[model][1]) for name in names]


def outcome(found) -> object:
    """What a side makes of a pattern: the engine's layers that it leaves alone, or which error."""
    try:
        return {*found()}
    except (PatternError, RefitError) as error:
        return "nothing" if "matches no layer" in str(error) else "a part"


def by_vllm(model: str, pattern: str) -> object:
    """By its own rule; experts by those of their projections, as its compressed-tensors does."""
    names = [*layers_in(model), *(f"{name}.0.gate_up_proj" for name in layers_in(model) if name.endswith(".experts"))]
    if any(re.match(pattern.removeprefix("re:"), name) for name in names):  # an expression for a fused one's name
        pattern = PATTERNS[pattern] or pattern
    used, left = False, set()

    def asked(name: str) -> bool:
        return should_ignore_layer(name, [pattern], FUSED)

    for name in layers_in(model):
        parts = [name]
        if name.endswith(".experts") and not asked(name):
            parts = [f"{name}.{e}.{one}_proj" for e in range(4) for one in ("gate", "up", "down")]
        try:
            found = {asked(part) for part in parts}
        except ValueError:
            return "a part"
        if len(found) > 1:
            return "a part"
        left |= {name} if found.pop() else set()
    used = bool(left) or any(asked(name) for name in ("lm_head", "model.embed_tokens", *routers(model)))
    return left if used else "nothing"


def routers(model: str) -> list[str]:
    return [name.replace("experts", "gate") for name in layers_in(model) if name.endswith("mlp.experts")]


def by_engine(model: str, pattern: str) -> set[str]:
    config = AscendQuantConfig(ignore=[pattern])
    config.packed_modules_mapping = {"gate_up_proj": ["gate_proj", "up_proj"]}
    names = layers_in(model)
    left = {name for name in names if not config.quantizes(name, 4 if name.endswith(".experts") else 0)}
    for router in routers(model):
        config.quantizes(router)
    config.check_ignored(nn.Module(), has_draft=False)
    return left


@pytest.fixture(scope="module")
def trained():
    """transformers' models, on no device."""
    with torch.device("meta"):
        return {name: transformers.AutoModelForCausalLM.from_config(config()) for name, (config, _) in MODELS.items()}


def by_trainer(trained: dict, model: str, pattern: str) -> tuple[str, ...]:
    with torch.device("meta"):
        copy = type(trained[model])(trained[model].config)
    return apply_fake_quantization(copy, "int4_g32", [pattern]).in_engine.names


def by_convert(trained: dict, model: str, pattern: str) -> tuple[str, ...]:
    """From the names of a checkpoint, which has experts one by one."""
    matrices = [name for name, w in trained[model].named_parameters() if w.dim() == 2]
    names = [name.removesuffix(".weight") for name in matrices if not name.endswith("embed_tokens.weight")]
    for name in layers_in(model):
        if name.endswith(".experts"):
            names += [f"{name}.{e}.{one}_proj" for e in range(4) for one in ("gate", "up", "down")]
    return Unquantized.of("int8", Ignored([pattern]).among(layers_of(names), "IN")).names


def by_megatron(model: str, pattern: str) -> set[str]:
    """The engine's names of Megatron's modules alone; whole models: test_megatron_qat.py."""
    found, ignored = {}, Ignored([pattern])
    latent = "qkv_proj" not in " ".join(layers_in(model))
    parts = ["linear_proj", *(["linear_kv_down_proj", "linear_kv_up_proj"] if latent else ["linear_qkv"])]
    if latent:
        down = any("fused_qkv_a_proj" in name for name in layers_in(model))
        parts += ["linear_q_down_proj", "linear_q_up_proj"] if down else ["linear_q_proj"]
    for i, names in enumerate(MODELS[model][1]):
        modules = [f"self_attention.{part}" for part in parts]
        mlps = (
            ["mlp.linear_fc1", "mlp.linear_fc2"]
            if "mlp.down_proj" in names
            else ["mlp.experts.linear_fc1", "mlp.router"]
        )
        if "mlp.shared_experts.down_proj" in names:
            mlps += ["mlp.shared_experts.linear_fc1", "mlp.shared_experts.linear_fc2"]
        found |= {name: i for module in modules + mlps for name in from_megatron(module, i)}
    layers = layers_of(found, {name: 4 for name in found if name.endswith("mlp.experts")})
    assert {layer.name for layer in layers.values() if not keeps_its_dtype(layer.name)} == {*layers_in(model)}
    left = {layer.name for layer in layers.values() if ignored.covers(layer)}
    ignored.check_used("the model")
    return {name for name in left if not keeps_its_dtype(name)}


@pytest.mark.parametrize("model", MODELS)
def test_a_pattern_means_the_same_layers_on_all_sides(model, trained):
    kinds = set()
    for pattern in PATTERNS:
        expected = by_vllm(model, pattern)
        found = {
            "engine": outcome(lambda pattern=pattern: by_engine(model, pattern)),
            "trainer": outcome(lambda pattern=pattern: by_trainer(trained, model, pattern)),
            "megatron": outcome(lambda pattern=pattern: by_megatron(model, pattern)),
            "convert": outcome(lambda pattern=pattern: by_convert(trained, model, pattern)),
        }
        assert found == dict.fromkeys(found, expected), pattern
        kinds.add(expected if isinstance(expected, str) else bool(expected))
    assert kinds == {True, False, *OUTCOMES}


def test_what_is_fused_is_what_vllms_models_fuse():
    """Of the families that are served, read from their sources."""
    found = {}
    sources = (Path(vllm.__file__).parent / "model_executor" / "models").glob("*.py")
    for file in (one for one in sources if one.name.startswith(("qwen", "llama", "deepseek"))):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Assign) and "packed_modules_mapping" in ast.unparse(node.targets[0]):
                with_index = isinstance(node.targets[0], ast.Subscript)
                try:
                    value = ast.literal_eval(node.value)
                    value = {ast.literal_eval(node.targets[0].slice): value} if with_index else value
                except ValueError:
                    continue
                for name, parts in (value or {}).items():
                    if len(parts) > 1:
                        found.setdefault(name, []).append(tuple(parts))
    for name, parts in FUSED.items():
        assert max(set(found[name]), key=found[name].count) == parts, name


def test_the_digest_is_of_scheme_and_layers_alone():
    one = Unquantized.of(
        "int8", ["a.k_proj", "a.q_proj", "a.v_proj", "b.experts.1.up_proj", "b.experts.0.up_proj", "lm_head"]
    )
    assert one.names == ("a.qkv_proj", "b.experts") and one == Unquantized.of("int8", ["b.experts", "a.qkv_proj"])
    others = [Unquantized("int8"), Unquantized("int4_g32", one.names), Unquantized("int8", one.names[:1])]
    assert len({one.digest, *(other.digest for other in others)}) == 4 and "2 layers" in repr(one)
