"""The table of models: one row an architecture, as a small random model of transformers' own class.

A row says what an engine must do with it: serve, with these parts left in BF16, or refuse, naming this. Each is run
by test_architectures.py; docs/models.md and docs/models.zh.md have a line for each.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from models import COMMON, VOCAB, checkpoint, save, with_tokenizer
from seeing import IDS, save_processor
from seeing import VOCAB as VOCAB_OF_IMAGES


@dataclass(frozen=True)
class Row:
    """An architecture.

    Attributes:
        name: as users call it.
        model: transformers' class, and vLLM's.
        settings: of its config, beside models.COMMON.
        plain: parts of the names of the checkpoint's matrices that keep BF16, beside embeddings and `lm_head`.
        refused: what the one line of a refusal names; empty for a model that is served.
        amx: whether it is run with AMX where there is: vLLM's own kernels for it do not compute all models this small.
        left_out: tensors that a published checkpoint has beside the model's, with a place in no engine without drafter.
        vision: settings of the tower, of a model that sees; `settings` are those of its language model then.
        processor: transformers' class of it.
        transposed: parts of the names of stacks of matrices that published checkpoints hold transposed.
        lacks: what vLLM's CPU build lacks for it, and stand_ins.py has.
    """

    name: str
    model: str
    settings: dict = field(default_factory=dict)
    plain: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    amx: bool = True
    left_out: tuple[str, ...] = ()
    vision: dict = field(default_factory=dict)
    processor: str = "Qwen3VLProcessor"
    transposed: tuple[str, ...] = ()
    lacks: str = ""


GATE = (".gate.",)
SHARED = (".gate.", ".shared_expert_gate.")
CONVOLUTION = (".conv1d.",)
QWEN_MOE = {
    **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True},
    **{"decoder_sparse_step": 1, "mlp_only_layers": []},
}
DELTA_NET = {
    **{"head_dim": 32, "layer_types": ["linear_attention", "full_attention"]},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4},
    **{"linear_key_head_dim": 128, "linear_value_head_dim": 128},
}
NEXT_EXPERTS = {
    **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    "shared_expert_intermediate_size": 64,
}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
TIED = {"tie_word_embeddings": True}
HEADS_OF_32 = {"head_dim": 32}
WINDOW = {"sliding_window": 16, "head_dim": 32}
GLM_MOE = {
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_shared_experts": 1},
    **{"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "head_dim": 32},
}
LATENT = {
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_shared_experts": 1},
    **{"first_k_dense_replace": 1, "q_lora_rank": 96, "kv_lora_rank": 512, "num_key_value_heads": 4},
    **{"qk_nope_head_dim": 32, "qk_rope_head_dim": 64, "v_head_dim": 32, "n_group": 1, "topk_group": 1},
}
SCALED = {"routed_scaling_factor": 2.5, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
ROUTER, PREFILL, CONV = "router by sigmoid", "prefill of latent attention", "convolution of three unpacked"
MTP = ("mtp.fc.weight",)
GLM_WITH_MTP = {**GLM_MOE, "num_nextn_predict_layers": 1}
GLM_MTP = ("model.layers.2.eh_proj.weight", "model.layers.2.enorm.weight")
TOWER = ("visual.",)
SIGHT = {"depth": 2, "hidden_size": 64, "num_heads": 2, "intermediate_size": 96, "out_hidden_size": 128}
PLACES = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}}
SIGHT_3 = {**SIGHT, "patch_size": 16, "num_position_embeddings": 64}
DEEP = {**SIGHT_3, "deepstack_visual_indexes": [0]}
MANY_PLACES = {"rope_parameters": {**PLACES["rope_parameters"], "mrope_section": [2, 1, 1], "mrope_interleaved": True}}
ROWS = (
    Row("Qwen2", "Qwen2ForCausalLM"),
    Row("Qwen3", "Qwen3ForCausalLM", HEADS_OF_32),
    Row("Qwen2-MoE", "Qwen2MoeForCausalLM", {**QWEN_MOE, "shared_expert_intermediate_size": 64}, SHARED),
    Row("Qwen3-MoE", "Qwen3MoeForCausalLM", {**QWEN_MOE, **HEADS_OF_32}, GATE),
    Row("Qwen3-Next", "Qwen3NextForCausalLM", {**DELTA_NET, **NEXT_EXPERTS}, (*SHARED, *CONVOLUTION), left_out=MTP),
    Row("Llama", "LlamaForCausalLM"),
    Row("Mistral", "MistralForCausalLM", WINDOW, amx=False),
    Row(
        "Mixtral",
        "MixtralForCausalLM",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
        GATE,
    ),
    Row("Gemma 2", "Gemma2ForCausalLM", {**WINDOW, **TIED, "query_pre_attn_scalar": 32}, amx=False),
    Row("Gemma 3 (text)", "Gemma3ForCausalLM", {**WINDOW, "query_pre_attn_scalar": 32}, amx=False),
    Row("Phi-3", "Phi3ForCausalLM", {"sliding_window": None}),
    Row("GLM-4", "Glm4ForCausalLM", HEADS_OF_32),
    Row("GLM-4.5", "Glm4MoeForCausalLM", GLM_MOE, GATE),
    Row("GLM-4.5 with MTP layers", "Glm4MoeForCausalLM", GLM_WITH_MTP, GATE, left_out=GLM_MTP),
    Row("OLMo 2", "Olmo2ForCausalLM"),
    Row("OLMo 3", "Olmo3ForCausalLM", {"sliding_window": 16}, amx=False),
    Row("OLMoE", "OlmoeForCausalLM", {"num_experts": 4, "num_experts_per_tok": 2}, GATE),
    Row("Granite", "GraniteForCausalLM"),
    Row("SmolLM3", "SmolLM3ForCausalLM"),
    Row("Seed-OSS", "SeedOssForCausalLM", HEADS_OF_32),
    Row(
        "ERNIE-4.5-MoE",
        "Ernie4_5_MoeForCausalLM",
        {
            **{"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 64, "moe_num_shared_experts": 1},
            **{"moe_layer_start_index": 1, "moe_layer_end_index": 1},
        },
        GATE,
    ),
    Row("GLM", "GlmForCausalLM", HEADS_OF_32),
    Row("Command R", "CohereForCausalLM", TIED),
    Row("StarCoder2", "Starcoder2ForCausalLM", {"sliding_window": None}),
    Row("Arcee", "ArceeForCausalLM"),
    Row("StableLM", "StableLmForCausalLM"),
    Row("Exaone 4", "Exaone4ForCausalLM", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    # From here on to MiniMax-M2: run without AMX alone until a machine with it has seen them.
    Row(
        "Qwen2.5-VL",
        "Qwen2_5_VLForConditionalGeneration",
        PLACES,
        TOWER,
        vision={**SIGHT, "patch_size": 14, "fullatt_block_indexes": [1], "window_size": 56},
        processor="Qwen2_5_VLProcessor",
        amx=False,
    ),
    Row(
        "Qwen3-VL",
        "Qwen3VLForConditionalGeneration",
        {**PLACES, **HEADS_OF_32, "architectures": ["Qwen3ForCausalLM"]},
        TOWER,
        vision=DEEP,
        amx=False,
    ),
    Row(
        "Qwen3-VL-MoE",
        "Qwen3VLMoeForConditionalGeneration",
        {**QWEN_MOE, "moe_intermediate_size": 96, **PLACES, **HEADS_OF_32, "architectures": ["Qwen3MoeForCausalLM"]},
        (*GATE, *TOWER),
        vision=DEEP,
        transposed=(".experts.",),
        amx=False,
    ),
    Row("Qwen3.5 (text)", "Qwen3_5ForCausalLM", DELTA_NET, CONVOLUTION, left_out=MTP, amx=False),
    Row(
        "Qwen3.5-MoE (text)", "Qwen3_5MoeForCausalLM", {**DELTA_NET, **NEXT_EXPERTS}, (*SHARED, *CONVOLUTION), amx=False
    ),
    Row(
        "Qwen3.5",
        "Qwen3_5ForConditionalGeneration",
        {**DELTA_NET, **MANY_PLACES},
        (*CONVOLUTION, *TOWER),
        left_out=MTP,
        vision=SIGHT_3,
        amx=False,
    ),
    Row(
        "Qwen3.5-MoE",
        "Qwen3_5MoeForConditionalGeneration",
        {**DELTA_NET, **NEXT_EXPERTS, **MANY_PLACES},
        (*SHARED, *CONVOLUTION, *TOWER),
        vision=SIGHT_3,
        amx=False,
    ),
    Row("DeepSeek-V2", "DeepseekV2ForCausalLM", LATENT, GATE, lacks=PREFILL, amx=False),
    Row("DeepSeek-V3", "DeepseekV3ForCausalLM", {**LATENT, **SCALED}, GATE, lacks=PREFILL, amx=False),
    Row("GLM-4.7-Flash", "Glm4MoeLiteForCausalLM", {**LATENT, **SCALED}, GATE, lacks=PREFILL, amx=False),
    Row(
        "K-EXAONE",
        "ExaoneMoeForCausalLM",
        {
            **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "num_shared_experts": 1},
            **{"routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1, "head_dim": 32, "sliding_windows": None},
            **{"layer_types": ["full_attention"] * 2, "mlp_layer_types": ["dense", "sparse"]},
        },
        GATE,
        amx=False,
    ),
    Row(
        "LFM2",
        "Lfm2ForCausalLM",
        {"layer_types": ["conv", "full_attention"], "block_dim": 128, "conv_dim": 128, **TIED},
        (".conv.conv.",),
        lacks=CONV,
        amx=False,
    ),
    Row(
        "MiniMax-M2",
        "MiniMaxM2ForCausalLM",
        {
            **{"num_local_experts": 16, "num_experts_per_tok": 2, "intermediate_size": 64},
            **{"head_dim": 32, "rotary_dim": 16, "scoring_func": "sigmoid", "use_routing_bias": True},
        },
        GATE,
        lacks=ROUTER,
        amx=False,
    ),
    Row("gpt-oss", "GptOssForCausalLM", {**WINDOW, **LOCAL_EXPERTS, "intermediate_size": 64}, refused=("swigluoai",)),
    Row("GraniteMoE", "GraniteMoeForCausalLM", LOCAL_EXPERTS, (".router.",)),
    Row(
        "Falcon-H1",
        "FalconH1ForCausalLM",
        {
            **{"mamba_d_ssm": 128, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_d_state": 16},
            "head_dim": 32,
        },
        refused=("A_log",),
    ),
)


def make(row: Row, folder: Path) -> Path:
    """A BF16 checkpoint with a tokenizer; weights large enough that logits are not flat."""
    torch.manual_seed(0)
    kind = getattr(transformers, row.model)
    model = kind(config_of(row, kind.config_class))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0, 0.1) if name.endswith("bias") else parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    model.to(torch.bfloat16).save_pretrained(folder)
    if row.transposed:
        state = checkpoint(folder)
        save(
            {name: tensor.mT.contiguous() if is_transposed(row, name) else tensor for name, tensor in state.items()},
            folder,
        )
    save_processor(row.processor, row.vision["patch_size"], folder) if row.vision else with_tokenizer(folder)
    return folder


def config_of(row: Row, kind: type[transformers.PreTrainedConfig]) -> transformers.PreTrainedConfig:
    """Of the whole model."""
    settings = deepcopy({**COMMON, **row.settings})  # configs add to what they are given
    if not row.vision:
        return kind(**settings)
    text = {**settings, "vocab_size": VOCAB_OF_IMAGES}
    return kind(text_config=text, vision_config=row.vision, tie_word_embeddings=False, **IDS)


def is_transposed(row: Row, name: str) -> bool:
    """Whether the checkpoint holds this tensor of matrices with their columns as rows."""
    return any(part in name for part in row.transposed)


def is_quantized(row: Row, name: str, tensor: torch.Tensor) -> bool:
    """Whether a scheme that quantizes takes this tensor of the row's checkpoint."""
    kept = ("embed_tokens", "lm_head", "norm", "bias", *row.plain, *row.left_out)
    return tensor.dim() > 1 and VOCAB not in tensor.shape and not any(part in name for part in kept)
