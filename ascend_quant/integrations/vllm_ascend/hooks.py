"""Monkeypatches of vllm-ascend only; integrations/vllm/hooks.py has those that its classes share with vLLM's."""

from ascend_quant.integrations.vllm_ascend import fused_norm
from ascend_quant.integrations.wrapping import Hook

HOOKS = (
    Hook(
        ("vllm_ascend.compilation.passes.norm_quant_fusion_pass:AddRMSNormQuantFusionPass.__init__",),
        fused_norm.meeting_default_norms,
        why="Qwen's norm and the quantization after it stay two kernels, as no pattern matches them",
        versions="0.23 and 0.30, on host memory; 0.10 has no such pass",
        off='additional_config={"ascend_compilation_config": {"fuse_norm_quant": false}}; another `quantization`',
        optional=True,
        fits=fused_norm.is_known,
    ),
)
