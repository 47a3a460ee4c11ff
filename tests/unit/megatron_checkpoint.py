"""Writes a Hugging Face model as a torch_dist checkpoint of Megatron-core's own classes; one process a rank.

    python -m torch.distributed.run --nproc-per-node 2 megatron_checkpoint.py MODEL OUT {"tensor": 2}

There is no GPU, so two calls of Megatron-core's writer have a stand-in: waiting for CUDA's copies, and the device of
a flag that ranks exchange. TransformerEngine is not here either; the local layers write the same keys, but for the
norm before experts, which is named here as TransformerEngine's are.
"""

import json
import sys
from pathlib import Path

import torch

NORMS = {"input_layernorm.": "self_attention.linear_qkv.layer_norm_"}


def main(model: str, out: str, parallel: dict[str, int]) -> None:
    import torch.distributed as dist
    from megatron.core import dist_checkpointing, parallel_state
    from safetensors.torch import load_file

    config = json.loads((Path(model) / "config.json").read_text())
    tensors = load_file(Path(model) / "model.safetensors")
    dist.init_process_group("gloo")
    sizes = {f"{name}_model_parallel_size": size for name, size in parallel.items()}
    parallel_state.initialize_model_parallel(**sizes, expert_tensor_parallel_size=1)
    module = build(config, sizes)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(slice_of(whole(name, tensors, config), parameter, name))
    state = module.sharded_state_dict()
    torch.cuda.synchronize, torch.cuda.current_device = lambda: None, lambda: "cpu"
    Path(out).mkdir(exist_ok=True)
    dist.barrier()
    dist_checkpointing.save(state, out)
    dist.destroy_process_group()


def build(config: dict, sizes: dict[str, int]) -> torch.nn.Module:
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    experts, norms = experts_of(config), config["model_type"].startswith("qwen3")
    mixture = {"num_moe_experts": experts, "moe_ffn_hidden_size": config["moe_intermediate_size"]} if experts else {}
    transformer = TransformerConfig(
        num_layers=config["num_hidden_layers"], hidden_size=config["hidden_size"],
        num_attention_heads=config["num_attention_heads"], num_query_groups=config["num_key_value_heads"],
        kv_channels=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        ffn_hidden_size=config["intermediate_size"], normalization="RMSNorm", qk_layernorm=norms,
        add_bias_linear=False, add_qkv_bias=not norms, gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, use_cpu_initialization=True, bf16=True,
        params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16, expert_tensor_parallel_size=1, **mixture, **sizes,
    )  # fmt: skip
    spec = get_gpt_layer_local_spec(experts, moe_grouped_gemm=False, qk_layernorm=norms, normalization="RMSNorm")
    if experts:
        spec.submodules.sharded_state_dict_keys_map = NORMS
    return GPTModel(
        transformer, spec, vocab_size=-(-config["vocab_size"] // 32) * 32, max_sequence_length=64,
        pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=config["tie_word_embeddings"], position_embedding_type="rope",
    )  # fmt: skip


def experts_of(config: dict) -> int | None:
    """How many a layer has; transformers 5 writes another name than the hub's files have."""
    return config.get("num_experts") or config.get("num_local_experts")


def whole(
    name: str, tensors: dict[str, torch.Tensor], config: dict
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Megatron's parameter on a model of one rank, from the tensors of the model; gate and up apart."""
    if name == "embedding.word_embeddings.weight":
        return padded(tensors["model.embed_tokens.weight"])
    if name == "output_layer.weight":
        return padded(tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"]))
    if name == "decoder.final_layernorm.weight":
        return tensors["model.norm.weight"]
    first, rest = global_layer(name, config)
    layer = f"model.layers.{first}."
    if "linear_qkv" in rest:
        return grouped([tensors[f"{layer}self_attn.{one}_proj.{rest.rsplit('.')[-1]}"] for one in "qkv"], config)
    if "linear_fc1" in rest:
        mlp = layer + rest.replace("local_experts.", "").removesuffix("linear_fc1.weight")
        return tensors[f"{mlp}gate_proj.weight"], tensors[f"{mlp}up_proj.weight"]
    renamed = {
        "input_layernorm.weight": "input_layernorm.weight",
        "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
        "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
        "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
        "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
        "mlp.router.weight": "mlp.gate.weight",
    }
    return tensors[layer + renamed.get(rest, rest.replace("local_experts.", "").replace("linear_fc2", "down_proj"))]


def global_layer(name: str, config: dict) -> tuple[int, str]:
    """The layer of the whole model, and what comes after it, with a rank's expert as the model counts it."""
    from megatron.core import parallel_state

    _, _, layer, rest = name.split(".", 3)
    stage = parallel_state.get_pipeline_model_parallel_rank()
    before = stage * config["num_hidden_layers"] // parallel_state.get_pipeline_model_parallel_world_size()
    if "local_experts." in rest:
        head, expert, tail = rest.split("local_experts.")[0], *rest.split("local_experts.")[1].split(".", 1)
        each = experts_of(config) // parallel_state.get_expert_model_parallel_world_size()
        rest = f"{head}local_experts.{parallel_state.get_expert_model_parallel_rank() * each + int(expert)}.{tail}"
    return int(layer) + before, rest


def grouped(qkv: list[torch.Tensor], config: dict) -> torch.Tensor:
    """Group by group: the queries of a key-value head, that key, that value."""
    groups = config["num_key_value_heads"]
    each = [list(one.chunk(groups)) for one in qkv]
    return torch.cat([each[kind][group] for group in range(groups) for kind in range(3)])


def padded(w_VH: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(w_VH, (0, 0, 0, -w_VH.shape[0] % 32), value=7.0)


def slice_of(whole: torch.Tensor | tuple, parameter: torch.Tensor, name: str) -> torch.Tensor:
    """A rank's slice: along the one dimension in which it is smaller."""
    from megatron.core import parallel_state

    if isinstance(whole, tuple):
        half = parameter[: parameter.shape[0] // 2]
        return torch.cat([slice_of(one, half, name) for one in whole])
    rank = parallel_state.get_tensor_model_parallel_rank()
    for dim, (size, own) in enumerate(zip(whole.shape, parameter.shape, strict=True)):
        if own < size:
            return whole.chunk(size // own, dim)[rank]
    return whole


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
