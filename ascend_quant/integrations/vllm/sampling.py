"""Faster sampling for vLLM on CUDA: the same noise from the same generators, and therefore the same tokens."""

import logging
from collections.abc import Callable

import torch

from ascend_quant.integrations.vllm.compat import samples_with_logprobs

logger = logging.getLogger(__name__)


def drawing_in_one_pass(original: Callable) -> Callable:
    """Wrap `Sampler.sample`: our kernel samples if logits are float32 and no request is greedy or filters tokens."""
    returns_two = samples_with_logprobs(original)
    compiled = []

    def sample(self, logits, sampling_metadata, *args, **kwargs):
        fits = logits.dtype == torch.float32 and logits.stride(1) == 1 and not (args or kwargs)
        if not fits or _returns_more(self):
            return original(self, logits, sampling_metadata, *args, **kwargs)
        if not _draws_from_all(sampling_metadata):
            if not compiled:  # at vLLM's trial run, so that no request waits for the compiler
                compiled.append(True)
                _drawn(logits[:1], torch.ones_like(logits[:1, 0]), torch.ones_like(logits[:1]))
            return original(self, logits, sampling_metadata)
        tokens = _drawn(logits, sampling_metadata.temperature, _noise(logits, sampling_metadata.generators))
        return (tokens, None) if returns_two else tokens

    logger.info("the fused sampler is used: it reads the logits once and draws the same tokens as vLLM's sampler")
    return sample


def _draws_from_all(metadata) -> bool:
    """Return whether every request samples from its full distribution: none is greedy, and none filters tokens."""
    processors = getattr(getattr(metadata, "logitsprocs", None), "argmax_invariant", [None])
    idle = all(getattr(processor, "min_p_count", None) == 0 for processor in processors)
    return metadata.all_random and metadata.top_k is None and metadata.top_p is None and idle


def _returns_more(sampler) -> bool:
    """Return whether the sampler must also return logits, or use float64 noise."""
    mode = str(getattr(sampler, "logprobs_mode", "raw_logprobs"))
    return "processed" in mode or getattr(sampler, "use_fp64_gumbel", False)


def _drawn(logits: torch.Tensor, temperature: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    from ascend_quant.kernels.cuda.serve import triton_sampling

    return triton_sampling.drawn(logits, temperature, noise)


def _noise(logits: torch.Tensor, generators: dict[int, torch.Generator]) -> torch.Tensor:
    """Draw exponential noise as vLLM does: for all requests at once, then again for those with their own seed."""
    noise = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    if len(generators) != logits.shape[0]:
        noise.exponential_()
    for row, generator in generators.items():
        noise[row].exponential_(generator=generator)
    return noise
