"""What vLLM's CPU build lacks for some models: written with torch ops, for the tests that run them.

Both engines of a comparison have them, plain vLLM and ours. On GPUs vLLM has kernels for both.
"""

import torch
from vllm.model_executor.layers import utils
from vllm.model_executor.layers.attention import mla_attention
from vllm.model_executor.layers.fused_moe.router import cpu_router
from vllm.v1.attention.backends.mla.prefill.base import MLAPrefillBackend


class Prefill(MLAPrefillBackend):
    """Causal attention within each sequence of a batch: what latent attention does with new prompts."""

    @staticmethod
    def get_name() -> str:
        return "STAND_IN"

    def run_prefill_new_tokens(self, q, k, v, return_softmax_lse, out=None, output_scale=None):
        """q, k (tokens, heads, nope + rope), v (tokens, heads, value) -> (tokens, heads, value)."""
        lengths = self._prefill_metadata.query_start_loc.diff().tolist()
        parts = [tensor.transpose(0, 1).split(lengths, dim=1) for tensor in (q, k, v)]
        attend = torch.nn.functional.scaled_dot_product_attention
        answers = [attend(*one, is_causal=True, scale=self.scale) for one in zip(*parts, strict=True)]
        return torch.cat(answers, dim=1).transpose(0, 1)

    def run_prefill_context_chunk(self, chunk, q, k, v, out=None):
        raise NotImplementedError("vLLM's CPU platform cuts no prompt of latent attention into chunks")


def attend_to_latents(monkeypatch) -> None:
    """A prefill for latent attention; and its layers find the weight that vLLM's linear layers pack and throw away."""
    keep = utils.dispatch_cpu_unquantized_gemm
    monkeypatch.setattr(mla_attention, "get_mla_prefill_backend", lambda vllm_config: Prefill)
    monkeypatch.setattr(utils, "dispatch_cpu_unquantized_gemm", lambda layer, remove_weight: keep(layer, False))


def route_by_sigmoid(monkeypatch) -> None:
    """A router in float32 that scores by sigmoid, all experts in one group; its product: vLLM's ends the process."""
    route, pack = cpu_router.CPURouter._compute_routing, utils.dispatch_cpu_unquantized_gemm

    def in_one_group(self, *args, **kwargs):
        self.use_grouped_topk, self.num_expert_group, self.topk_group = True, 1, 1
        return route(self, *args, **kwargs)

    def dispatch(layer, remove_weight):
        if layer.weight.dtype == torch.float32:
            layer.cpu_linear = torch.nn.functional.linear
        else:
            pack(layer, remove_weight)

    monkeypatch.setattr(utils, "dispatch_cpu_unquantized_gemm", dispatch)
    monkeypatch.setattr(cpu_router.CPURouter, "_compute_routing", in_one_group)


def leave_short_convolutions(monkeypatch) -> None:
    """Convolutions of another width than four stay unpacked: vLLM 0.31 tries to pack them, and cannot."""
    pack = utils.dispatch_cpu_unquantized_gemm

    def dispatch(layer, remove_weight):
        if layer.weight.dim() == 2 or layer.weight.shape[-1] == 4:
            pack(layer, remove_weight)

    monkeypatch.setattr(utils, "dispatch_cpu_unquantized_gemm", dispatch)
