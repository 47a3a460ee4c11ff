"""Small random checkpoints of the architectures that users run, and what the oracle makes of them.

Widths are odd on purpose: head counts that differ, intermediate sizes that are prime, K = 1 heads of a router.
"""

from collections.abc import Collection
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from ascend_quant import oracle
from ascend_quant.schemes import Scheme, get_scheme
from ascend_quant.transfer.prequantized import coded

VOCAB = 61
COMMON = {
    "vocab_size": VOCAB,
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
KINDS = {
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen2-tied": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 64}),
    "llama-odd": (
        LlamaForCausalLM,
        LlamaConfig,
        {
            "hidden_size": 96,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "intermediate_size": 173,
        },
    ),
    "qwen3-moe": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig,
        {
            "head_dim": 32,
            "moe_intermediate_size": 72,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
        },
    ),
}
FURTHER = {"mistral": (MistralForCausalLM, MistralConfig, {"head_dim": 32, "sliding_window": None})}
# as published, with layers for MTP behind those that serve: `with_mtp`; the oracle's forward pass does not know them
PUBLISHED = {
    "qwen3-next": (
        Qwen3NextForCausalLM,
        Qwen3NextConfig,
        {
            "head_dim": 32,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64,
        },
    ),
}
MTP = tuple(f"mtp.{leaf}.weight" for leaf in ("fc", "norm", "layers.0.mlp.gate", "layers.0.mlp.experts.1.down_proj"))


def with_mtp(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The checkpoint as it is published."""
    return state | {name: torch.full((4, 6), 1.5, dtype=torch.bfloat16) for name in MTP}


def make(kind: str, folder: Path, seed: int = 0, **overrides) -> Path:
    """A BF16 checkpoint with a tokenizer; weights large enough that logits are not flat."""
    torch.manual_seed(seed)
    model_class, config_class, settings = (KINDS | FURTHER | PUBLISHED)[kind]
    model = model_class(config_class(**{**COMMON, **settings, **overrides}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0, 0.1) if name.endswith("bias") else parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    folder = folder / f"{kind}-{seed}"
    model.to(torch.bfloat16).save_pretrained(folder)
    with_tokenizer(folder)
    return folder


def with_tokenizer(folder: Path, marks: dict[str, int] | None = None) -> PreTrainedTokenizerFast:
    """Save a tokenizer of single characters, and of special tokens by their ids."""
    vocabulary = {character: i for i, character in enumerate(["<pad>", "<eos>", *"0123456789+-*= \n"])} | (marks or {})
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    words.pre_tokenizer, words.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "additional_special_tokens": list(marks or {})}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **special)
    tokenizer.save_pretrained(folder)
    return tokenizer


def checkpoint(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def save(state: dict[str, torch.Tensor], folder: Path) -> None:
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def perturbed(state: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """The same checkpoint a training step later."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (tensor.float() * (1 + 0.2 * torch.randn(tensor.shape, generator=generator))).to(tensor.dtype)
        for name, tensor in state.items()
    }


def fused(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Unquantized tensors under the names of vLLM's parameters (experts by their layer's name)."""
    result, experts = {}, {}
    for name, tensor in state.items():
        owner, _, leaf = name.rpartition(".")
        base, _, layer = owner.rpartition(".")
        if ".experts." in name:
            prefix, _, expert = base.rpartition(".")
            experts.setdefault(prefix, {})[int(expert), layer] = tensor
        elif layer == "q_proj":
            group = [state[f"{base}.{shard}_proj.{leaf}"] for shard in "qkv"]
            result[f"{base}.qkv_proj.{leaf}"] = torch.cat(group)
        elif layer == "gate_proj":
            result[f"{base}.gate_up_proj.{leaf}"] = torch.cat([tensor, state[f"{base}.up_proj.{leaf}"]])
        elif layer not in ("k_proj", "v_proj", "up_proj"):
            result[name] = tensor
    for prefix, parts in experts.items():
        count = 1 + max(expert for expert, _ in parts)
        gate_up = [torch.cat([parts[e, "gate_proj"], parts[e, "up_proj"]]) for e in range(count)]
        result[f"{prefix}.w13_weight"] = torch.stack(gate_up)
        result[f"{prefix}.w2_weight"] = torch.stack([parts[e, "down_proj"] for e in range(count)])
    return result


def stacked(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The checkpoint with each layer's experts as 3-D tensors, as newer trainers send them."""
    names = {"w13_weight": "gate_up_proj", "w2_weight": "down_proj"}
    result = {name: tensor for name, tensor in state.items() if ".experts." not in name}
    for name, tensor in fused(state).items():
        prefix, _, leaf = name.rpartition(".")
        if leaf in names:
            result[f"{prefix}.{names[leaf]}"] = tensor
    return result


def as_codes(state: dict[str, torch.Tensor], scheme: str, names: Collection[str]) -> dict[str, torch.Tensor]:
    """The checkpoint as a trainer sends it that quantizes the tensors of these names itself."""
    result = {name: tensor for name, tensor in state.items() if name not in names}
    return result | dict(coded([(name, state[name]) for name in state if name in names], get_scheme(scheme)))


def is_quantized(name: str) -> bool:
    return name.endswith(("_proj.weight", "w13_weight", "w2_weight"))


def expected(state: dict[str, torch.Tensor], scheme: str = "int8") -> dict[str, torch.Tensor]:
    """What an engine must hold, computed by the oracle from the checkpoint alone."""
    chosen = get_scheme(scheme)
    if chosen.shares == "tensor":  # of the checkpoint, before they are fused
        pairs = {name: oracle.quantize(tensor, chosen) for name, tensor in state.items() if is_quantized(name)}
        codes = fused({**state, **{name: codes.view(torch.int8) for name, (codes, _) in pairs.items()}})
        by_row = {name: scale.expand(state[name].shape[0]).unsqueeze(-1) for name, (_, scale) in pairs.items()}
        scales = fused({**state, **by_row})
        quantized = {name: (codes[name], scales[name]) for name in codes if is_quantized(name)}
    else:
        quantized = {name: _held(tensor, chosen) for name, tensor in fused(state).items() if is_quantized(name)}
    result = {name: tensor for name, tensor in fused(state).items() if name not in quantized}
    for name, (codes, scale) in quantized.items():
        result[name], result[f"{name}_scale"] = codes, scale
    return result


def _held(tensor: torch.Tensor, scheme: Scheme) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes as bytes or packed words, scales with a dimension for the columns."""
    codes, scale = oracle.quantize(tensor, scheme)
    if scheme.codes == "int4":
        return oracle.pack_int4(codes), scale
    return codes.view(torch.int8), scale.unsqueeze(-1) if scheme.shares == "row" else scale
