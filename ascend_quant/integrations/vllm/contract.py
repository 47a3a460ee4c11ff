"""All names of vLLM that this project uses, grouped by feature, as rows of `use` that can be read without vLLM.

When the plugin registers, the rows of `core` are checked: if one is missing, nothing of vLLM is replaced, and an engine
with `quantization="ascend_quant"` is refused with that row as the reason. Other features are checked when they are
used. `./run.sh lint --contract vllm==0.34.0` reads the sources of a release that is not installed.
"""

from ascend_quant.integrations.contract import missing, use

_EXECUTOR = "vllm.model_executor"
_LAYERS, _LOADER, _MODELS = f"{_EXECUTOR}.layers", f"{_EXECUTOR}.model_loader", f"{_EXECUTOR}.models"
_QUANTIZATION, _MOE = f"{_LAYERS}.quantization", f"{_LAYERS}.fused_moe"
_CORE, _ENGINE = "vllm.v1.engine.core:EngineCore", "vllm.v1.engine.llm_engine:LLMEngine"
_SCHEDULER, _WORKER = "vllm.v1.core.sched.scheduler:Scheduler", "vllm.v1.worker.gpu_worker:Worker"
_BACKEND = "vllm.v1.attention.backend"

CONTRACT = {
    "core": (
        use("vllm:__version__"),
        use("vllm.config:VllmConfig"),
        use("vllm.envs"),
        use("vllm._custom_ops"),
        use("vllm.platforms:current_platform"),
        # the quantization method, and its layers
        use(f"{_QUANTIZATION}:QUANTIZATION_METHODS"),
        use(f"{_QUANTIZATION}:register_quantization_config"),
        use(f"{_QUANTIZATION}:get_quantization_config"),
        use(f"{_QUANTIZATION}.base_config:QuantizationConfig.get_quant_method", arguments=("layer", "prefix")),
        use(f"{_QUANTIZATION}.base_config:QuantizeMethodBase.process_weights_after_loading", arguments=("layer",)),
        use(f"{_LAYERS}.linear:LinearBase"),
        use(f"{_LAYERS}.linear:LinearBase.input_size", of_objects=True),
        use(f"{_LAYERS}.linear:LinearMethodBase.create_weights", arguments=(
            "layer", "input_size_per_partition", "output_partition_sizes", "input_size", "output_size", "params_dtype",
        )),
        use(f"{_LAYERS}.linear:LinearMethodBase.apply", arguments=("layer", "x", "bias")),
        use(f"{_LAYERS}.linear:UnquantizedLinearMethod"),
        use(f"{_LAYERS}.linear:ReplicatedLinear"),
        use(f"{_LAYERS}.linear:ColumnParallelLinear.output_partition_sizes", of_objects=True),
        use(f"{_LAYERS}.linear:ColumnParallelLinear.tp_size", of_objects=True),
        use(f"{_LAYERS}.linear:MergedColumnParallelLinear"),
        use(f"{_LAYERS}.linear:QKVParallelLinear.num_kv_head_replicas", of_objects=True),
        use(f"{_LAYERS}.linear:RowParallelLinear"),
        use(f"{_LAYERS}.vocab_parallel_embedding:UnquantizedEmbeddingMethod"),
        use(f"{_LAYERS}.vocab_parallel_embedding:VocabParallelEmbedding.shard_indices", of_objects=True),
        use(f"{_LAYERS}.vocab_parallel_embedding:VocabParallelEmbedding.org_vocab_size", of_objects=True),
        use(f"{_LAYERS}.attention:Attention", "vllm.attention:Attention"),
        use(f"{_LAYERS}.activation:SiluAndMul"),
        use(f"{_LAYERS}.layernorm:RMSNorm"),
        use(f"{_EXECUTOR}.utils:set_weight_attrs"),
        # from a model's construction to its first load, and later weight updates
        use(f"{_LOADER}.base_loader:initialize_model", arguments=("vllm_config",)),
        use("vllm.engine.arg_utils:EngineArgs.create_model_config"),
        use("vllm.engine.arg_utils:EngineArgs.create_engine_config"),
        use("vllm.v1.serial_utils:run_method", "vllm.utils:run_method"),
        # requests while an engine may not serve
        use(f"{_ENGINE}.add_request"),
        use(f"{_ENGINE}.get_num_unfinished_requests"),
        use("vllm.v1.engine.core:EngineCoreProc"),
        use("vllm.v1.engine.exceptions:EngineDeadError"),
        use(f"{_CORE}.__init__"),
        use(f"{_CORE}.add_request"),
        use(f"{_CORE}.step"),
        use(f"{_CORE}.step_with_batch_queue"),
        use(f"{_CORE}.reset_prefix_cache"),
        use(f"{_CORE}.collective_rpc", arguments=("method", "timeout", "args", "kwargs")),
        use(f"{_CORE}.scheduler", of_objects=True),
        use(f"{_CORE}.model_executor", of_objects=True),
        use(f"{_SCHEDULER}.finish_requests"),
        use(f"{_SCHEDULER}.requests", of_objects=True),
        use(f"{_SCHEDULER}.running", of_objects=True),
        use("vllm.v1.engine:EngineCoreOutput", arguments=(
            "request_id", "new_token_ids", "finish_reason", "stop_reason",
        )),
        use("vllm.v1.engine:EngineCoreOutputs", arguments=("outputs",)),
        use("vllm.v1.request:RequestStatus.get_finished_reason"),
        use("vllm.v1.request:RequestStatus.FINISHED_ABORTED"),
        use("vllm.v1.request:Request.client_index", of_objects=True),
        use("vllm.v1.request:Request.is_finished"),
    ),
    "experts": (
        use(f"{_MOE}:RoutedExperts", f"{_MOE}:FusedMoE"),
        use(f"{_MOE}:FusedMoEMethodBase.create_weights", arguments=(
            "layer", "num_experts", "hidden_size", "intermediate_size_per_partition", "params_dtype",
        )),
        use(f"{_MOE}:FusedMoEMethodBase.apply", arguments=("layer", "x", "topk_weights", "topk_ids")),
        use(f"{_MOE}.config:FusedMoEConfig.moe_parallel_config", of_objects=True),
    ),
    "experts on NVIDIA": (
        use(f"{_MOE}.fused_moe:fused_experts", arguments=("global_num_experts", "expert_map", "quant_config")),
    ),
    "exact": (
        use(f"{_LAYERS}.rotary_embedding:RotaryEmbedding"),
        use(f"{_LAYERS}.rotary_embedding.llama3_rope:Llama3RotaryEmbedding"),
    ),
    "exact trainer": (
        use(f"{_MOE}.router.router_factory:create_fused_moe_router", arguments=(
            "top_k", "global_num_experts", "renormalize",
        )),
    ),
    "exact trainer on CPUs": (
        use("vllm.v1.attention.backends.cpu_attn:_get_attn_isa", arguments=("dtype", "block_size", "head_size")),
        use("vllm._custom_ops:cpu_attn_reshape_and_cache", arguments=("isa",)),
        use("vllm._custom_ops:cpu_attn_get_scheduler_metadata", arguments=(
            "num_reqs", "num_heads", "num_kv_heads", "head_dim", "seq_lens", "dtype", "query_start_loc", "causal",
            "sliding_window_size", "isa", "enable_kv_split",
        )),
        use("vllm._custom_ops:cpu_attention_with_kv_cache", arguments=(
            "query", "key_cache", "value_cache", "output", "query_start_loc", "seq_lens", "scale", "causal",
            "alibi_slopes", "sliding_window", "block_table", "softcap", "scheduler_metadata", "s_aux",
        )),
    ),
    "exact trainer on NVIDIA": (
        use("vllm.vllm_flash_attn:is_fa_version_supported"),
        use("vllm.vllm_flash_attn:flash_attn_varlen_func", arguments=(
            "cu_seqlens_k", "softmax_scale", "causal", "fa_version", "num_splits",
        )),
    ),
    "int8 on NVIDIA": (use("vllm._custom_ops:cutlass_scaled_mm"),),
    "fp8 on NVIDIA": (
        use("vllm._custom_ops:scaled_fp8_quant", arguments=("use_per_token_if_dynamic",)),
        use(f"{_QUANTIZATION}.compressed_tensors.triton_scaled_mm:triton_scaled_mm"),
        use(f"{_QUANTIZATION}.utils.fp8_utils:per_token_group_quant_fp8", arguments=("use_ue8m0",)),
        use(f"{_QUANTIZATION}.utils.fp8_utils:w8a8_triton_block_scaled_mm"),
        use(f"{_MOE}.config:fp8_w8a8_moe_quant_config", arguments=(
            "w1_scale", "w2_scale", "per_act_token_quant", "per_out_ch_quant", "block_shape",
        )),
    ),
    "int4 on NVIDIA": (
        use("vllm.scalar_type:scalar_types"),
        use(f"{_QUANTIZATION}.utils.marlin_utils:marlin_make_workspace_new"),
        use(f"{_QUANTIZATION}.utils.marlin_utils:apply_gptq_marlin_linear", arguments=(
            "input", "weight", "weight_scale", "weight_zp", "workspace", "wtype", "output_size_per_partition",
            "input_size_per_partition",
        )),
        use(f"{_MOE}.experts.marlin_moe:fused_marlin_moe", arguments=(
            "quant_type_id", "global_num_experts", "expert_map", "workspace",
        )),
    ),
    "kv_cache int8 on NVIDIA": (
        use("vllm.v1.attention.backends.registry:register_backend"),
        use("vllm.v1.attention.backends.registry:AttentionBackendEnum.CUSTOM"),
        use("vllm.engine.arg_utils:EngineArgs", arguments=("attention_backend", "kv_cache_dtype")),
        use(f"{_BACKEND}:AttentionBackend.get_kv_cache_shape", arguments=(
            "num_blocks", "block_size", "num_kv_heads", "head_size", "cache_dtype_str",
        )),
        use(f"{_BACKEND}:AttentionBackend.get_kv_cache_stride_order"),
        use(f"{_BACKEND}:AttentionBackend.get_required_kv_cache_layout"),
        use(f"{_BACKEND}:AttentionImpl.forward", arguments=(
            "layer", "query", "key", "value", "kv_cache", "attn_metadata", "output", "output_scale",
            "output_block_scale",
        )),
        use(f"{_BACKEND}:AttentionMetadataBuilder.build", arguments=(
            "common_prefix_len", "common_attn_metadata", "fast_build",
        )),
        use(f"{_BACKEND}:AttentionMetadataBuilder.build_for_cudagraph_capture"),
        use(f"{_BACKEND}:AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE"),
        use(f"{_BACKEND}:CommonAttentionMetadata.seq_lens_cpu_upper_bound", of_objects=True),
        use(f"{_BACKEND}:AttentionMetadata"),
        use(f"{_BACKEND}:AttentionType.DECODER"),
        use(f"{_BACKEND}:MultipleOf"),
        use("vllm.v1.attention.backends.utils:split_decodes_and_prefills", arguments=("decode_threshold",)),
        use("vllm.v1.attention.backends.fa_utils:get_flash_attn_version", arguments=("head_size",)),
        use("vllm.v1.attention.backends.fa_utils:flash_attn_varlen_func"),
    ),
    "kv_cache fp8": (
        use(f"{_SCHEDULER}.reset_prefix_cache", arguments=("reset_running_requests",)),
        use(f"{_LAYERS}.attention:Attention.process_weights_after_loading"),
        use(f"{_LAYERS}.attention:Attention.get_attn_backend"),
        use(f"{_LAYERS}.attention:Attention.kv_cache_dtype", of_objects=True),
    ),
    "sleep": (
        use(f"{_CORE}.sleep"),
        use(f"{_CORE}.wake_up"),
        use(f"{_WORKER}.sleep", arguments=("level",)),
        use(f"{_WORKER}.wake_up", arguments=("tags",)),
        use(f"{_WORKER}._sleep_saved_buffers", of_objects=True),
    ),
    "layerwise reload": (
        use(f"{_LOADER}.reload:initialize_layerwise_reload", arguments=("model",)),
        use(f"{_LOADER}.reload:finalize_layerwise_reload", arguments=("model",)),
        use("vllm.distributed.parallel_state:get_dp_group"),
    ),
    "weight transfer": (use("vllm.distributed.weight_transfer:WeightTransferEngineFactory._registry"),),
    "HTTP server": (
        use("vllm.entrypoints.launchers.app:build_app", "vllm.entrypoints.openai.api_server:build_app"),
        use("vllm.v1.engine.async_llm:AsyncLLM.collective_rpc", arguments=("method",)),
        use("vllm.exceptions:GenerationError", "vllm.entrypoints.openai.engine.protocol:GenerationError"),
        use(
            "vllm.entrypoints.generate.base.serving:GenerateBaseServing.engine_client",
            "vllm.entrypoints.openai.engine.serving:OpenAIServing.engine_client",
            of_objects=True,
        ),
    ),
    "towers": (
        use(f"{_MODELS}.interfaces:SupportsMultiModal._mark_tower_model", arguments=("modalities", "targets")),
        use(f"{_CORE}.reset_encoder_cache"),
    ),
    "tensors left out": (
        use(f"{_MODELS}.utils:AutoWeightsLoader._can_skip", arguments=("qualname",)),
        use(f"{_MODELS}.utils:WeightsMapper._map_name", arguments=("key",)),
        use(
            *(f"{_MODELS}.{module}:get_spec_layer_idx_from_weight_name" for module in ("utils", "deepseek_v2")),
            arguments=("config", "weight_name"),
        ),
        use(f"{_MODELS}.utils:StageMissingLayer"),
    ),
    "gated delta nets on CPUs": (
        use(f"{_LAYERS}.utils:dispatch_cpu_unquantized_gemm", arguments=("layer", "remove_weight")),
    ),
    "latent attention": (
        use(f"{_LAYERS}.attention:MLAAttention.process_weights_after_loading", arguments=("act_dtype",)),
    ),
    "fused norms": (
        use(*(f"vllm.compilation.{place}inductor_pass:InductorPass.uuid" for place in ("passes.", ""))),
    ),
    "int8 cache on NPUs": (
        use("vllm.config:get_current_vllm_config"),
        use("vllm.distributed:get_tensor_model_parallel_rank"),
        use("vllm.distributed:get_tensor_model_parallel_world_size"),
    ),
    "mismatch and smoke": (
        use("vllm:LLM"),
        use("vllm:SamplingParams", arguments=("prompt_logprobs", "logprobs", "detokenize", "ignore_eos")),
        use("vllm.distributed:tensor_model_parallel_all_gather"),
        use("vllm.distributed:tensor_model_parallel_all_reduce"),
    ),
}  # fmt: skip


def problem_of(feature: str) -> str | None:
    """Return a description of what this vLLM lacks for a feature; None if nothing is missing."""
    if not (lacking := missing(CONTRACT[feature])):
        return None
    more = f", and {len(lacking) - 1} more" if len(lacking) > 1 else ""
    return f"{lacking[0]}{more} (vLLM {_version()})"


def _version() -> str:
    try:
        from vllm import __version__
    except ImportError:
        return "of unknown version"
    return __version__
