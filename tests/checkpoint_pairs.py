"""Pairs of tiny checkpoints, BF16 and smoothed W8A8, made here by the textbook: no module of ascend_quant is used.

    SmoothQuant (Xiao et al., 2022):  s_K = sqrt(act_K / max|w_K|); norm / s, what it feeds * s
    pairs (AWQ; Lin et al., 2023):    rows of v / s, columns of o * s; rows of up / s, columns of down * s
    compressed-tensors:               scale_N = max|w_N| / 127.5, codes = round(w / scale) in [-128, 127]

Activation ranges are random numbers with outliers; factors are BF16 numbers, as tools have them.
"""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3MoeConfig

COMMON = {
    "vocab_size": 61,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 192,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": None,
    "tie_word_embeddings": False,
}
MOE = {
    "head_dim": 64,
    "moe_intermediate_size": 72,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}
CONFIGS = {
    "qwen2": lambda more: Qwen2Config(**COMMON | more),
    "qwen3-moe": lambda more: Qwen3MoeConfig(**COMMON | MOE | more),
}
ALL = frozenset({"input_layernorm", "post_attention_layernorm", "v_proj", "up_proj"})
WEIGHTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
ACTIVATIONS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


@dataclass(frozen=True)
class Pair:
    """Two folders, and the factors that lead from one to the other.

    Attributes:
        columns: (K) that the columns of a weight were multiplied with, by its name.
        rows: (N) that the rows were divided by.
    """

    bf16: Path
    w8a8: Path
    columns: dict[str, torch.Tensor] = field(default_factory=dict)
    rows: dict[str, torch.Tensor] = field(default_factory=dict)


def make_bf16(kind: str, folder: Path, seed: int = 0, **config) -> Path:
    """A random BF16 checkpoint; norms, biases and routers are not flat."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind](config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
            elif name.endswith("bias"):
                parameter.normal_(0, 0.1)
            else:
                parameter.mul_(3)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def make_pair(kind: str, folder: Path, smooth: frozenset[str] = ALL, seed: int = 0, **options) -> Pair:
    """A BF16 checkpoint and its W8A8 one; `options` are those of `quantize`, others are the model's config."""
    quantizing = {key: options.pop(key) for key in ("arithmetic", "factor_dtype") if key in options}
    return quantize(make_bf16(kind, folder / "bf16", seed, **options), folder / "w8a8", smooth, seed, **quantizing)


def quantize(
    bf16: Path,
    w8a8: Path,
    smooth: frozenset[str] = ALL,
    seed: int = 0,
    arithmetic: str = "float32",
    factor_dtype: torch.dtype = torch.bfloat16,
) -> Pair:
    """The W8A8 checkpoint of a BF16 one in compressed-tensors format, with the other files beside it.

    Args:
        smooth: which factors there are, of `ALL`; a norm's are those of what it feeds.
        arithmetic: float32 (nothing is rounded on the way), bfloat16 (smoothed weights are), bfloat16_quotient
            (weight / scale too).
        factor_dtype: what the factors are numbers of.
    """
    state, config = load_file(bf16 / "model.safetensors"), json.loads((bf16 / "config.json").read_text())
    pair = Pair(bf16, w8a8)
    values = smoothed(state, config, smooth, seed, arithmetic, factor_dtype, pair)
    tensors = {}
    for name, value in values.items():
        if name.endswith("_proj.weight"):
            tensors[name], tensors[f"{name}_scale"] = codes_and_scale(value, arithmetic)
        else:
            tensors[name] = value.to(torch.bfloat16)
    shutil.copytree(bf16, w8a8, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file(tensors, w8a8 / "model.safetensors", metadata={"format": "pt"})
    group = {"targets": ["Linear"], "weights": WEIGHTS, "input_activations": ACTIVATIONS, "format": "int-quantized"}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", *(name.removesuffix(".weight") for name in state if name.endswith("mlp.gate.weight"))],
    }
    (w8a8 / "config.json").write_text(json.dumps(config))
    return pair


def smoothed(
    state: dict[str, torch.Tensor],
    config: dict,
    smooth: frozenset[str],
    seed: int,
    arithmetic: str,
    factor_dtype: torch.dtype,
    pair: Pair,
) -> dict[str, torch.Tensor]:
    """All parameters as float32, multiplied and divided; the factors go into `pair`."""
    generator = torch.Generator().manual_seed(seed)
    values = {name: tensor.float() for name, tensor in state.items()}

    def factor(names: list[str]) -> torch.Tensor:
        largest = torch.stack([values[name].abs().amax(0) for name in names]).amax(0)
        activation = torch.randn(len(largest), generator=generator).exp()
        activation[torch.randperm(len(largest), generator=generator)[:3]] *= 30
        return (activation.sqrt() / largest.sqrt()).to(factor_dtype).float()

    def scale(name: str, multiplier: torch.Tensor) -> None:
        values[name] = values[name] * multiplier
        if arithmetic != "float32":
            values[name] = values[name].bfloat16().float()

    for layer in sorted({name.split(".self_attn")[0] for name in state if ".self_attn." in name}):
        here = [name for name in state if name.startswith(f"{layer}.") and state[name].dim() == 2]
        for norm, fed in (("input_layernorm", (".q_", ".k_", ".v_")), ("post_attention_layernorm", (".gate", ".up_"))):
            if norm in smooth:
                names = [name for name in here if any(part in name for part in fed)]
                s_K = factor(names)
                values[f"{layer}.{norm}.weight"] /= s_K
                for name in names:
                    scale(name, s_K)
                    pair.columns[name] = s_K
        for producer, consumer in (("v_proj", "o_proj"), ("up_proj", "down_proj")):
            for name in (name for name in here if producer in smooth and producer in name):
                other, s_N = name.replace(producer, consumer), None
                head = values[name].shape[0] // config["num_key_value_heads"] if producer == "v_proj" else 1
                s_N = factor([other])[: values[name].shape[0]]
                groups = values[other].shape[1] // len(s_N)
                s_K = torch.cat([block.repeat(groups) for block in s_N.split(head)])
                scale(name, 1 / s_N.unsqueeze(1))
                scale(other, s_K)
                bias = name.replace("weight", "bias")
                if bias in values:
                    scale(bias, 1 / s_N)
                pair.rows[name], pair.columns[other] = s_N, s_K
    return values


def codes_and_scale(w_NK: torch.Tensor, arithmetic: str) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 codes (N, K) and the scale (N, 1) that a checkpoint has: float32, or BF16."""
    scale_N1 = w_NK.abs().amax(1, keepdim=True) / 127.5
    if arithmetic != "float32":
        scale_N1 = scale_N1.bfloat16()
    quotient = w_NK / scale_N1.float()
    if arithmetic == "bfloat16_quotient":
        quotient = quotient.bfloat16().float()
    return quotient.round().clamp(-128, 127).to(torch.int8), scale_N1


def as_modelslim(pair: Pair, folder: Path, static: tuple[str, ...] = ()) -> Pair:
    """The same W8A8 checkpoint in ModelSlim's format.

    Args:
        static: parts of names; these layers quantize activations per tensor, and keep their bias in `quant_bias` alone.
    """
    tensors, types = {}, {}
    for name, tensor in load_file(pair.w8a8 / "model.safetensors").items():
        layer, _, leaf = name.rpartition(".")
        is_static = any(part in name for part in static)
        kind = "W8A8" if is_static else "W8A8_DYNAMIC"
        if leaf == "weight_scale":
            tensors[name], tensors[f"{layer}.weight_offset"] = tensor.float(), torch.zeros_like(tensor.float())
            if is_static:
                ones_N = torch.ones(len(tensor))
                tensors[f"{layer}.input_scale"], tensors[f"{layer}.input_offset"] = torch.ones(1), torch.zeros(1)
                tensors[f"{layer}.quant_bias"], tensors[f"{layer}.deq_scale"] = ones_N.int(), ones_N
        elif not (is_static and leaf == "bias"):
            tensors[name] = tensor
        types[name] = kind if tensor.dtype == torch.int8 or leaf == "weight_scale" else "FLOAT"
    shutil.copytree(pair.w8a8, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file(tensors, folder / "quant_model_weight_w8a8.safetensors")
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    described = {"model_quant_type": "W8A8_DYNAMIC", "version": "1.0.0"} | {
        name: types.get(name, "W8A8") for name in tensors
    }
    (folder / "quant_model_description.json").write_text(json.dumps(described))
    return Pair(pair.bf16, folder, pair.columns, pair.rows)


def edit(folder: Path, change) -> None:
    """Change the tensors of a checkpoint: `change(state)` edits the dict."""
    (path,) = folder.glob("*.safetensors")
    state = load_file(path)
    change(state)
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path, metadata={"format": "pt"})


def shard(folder: Path, count: int) -> None:
    """Spread a checkpoint over several files with an index."""
    (path,) = folder.glob("*.safetensors")
    state, places = load_file(path), {}
    path.unlink()
    for number in range(count):
        file = f"model-{number + 1:05}-of-{count:05}.safetensors"
        part = {name: tensor for at, (name, tensor) in enumerate(state.items()) if at % count == number}
        save_file(part, folder / file)
        places |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
