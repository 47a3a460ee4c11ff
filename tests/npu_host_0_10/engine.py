"""The surroundings that vLLM 0.10.1's layers want, on npu:0 of host memory with vllm-ascend 0.10 as the platform.

    with engine.running(tmp_path, models.MOE) as config:
        model = base_loader.initialize_model(vllm_config=config, model_config=config.model_config)

vllm-ascend's worker wants CANN's Python package and is out of reach here.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
from npu_host import models
from torch.distributed import ProcessGroupGloo
from vllm.config import ParallelConfig, VllmConfig, set_current_vllm_config
from vllm.distributed.parallel_state import (
    cleanup_dist_env_and_memory,
    ensure_model_parallel_initialized,
    init_distributed_environment,
)
from vllm.model_executor.models import registry
from vllm_ascend.ascend_config import clear_ascend_config, init_ascend_config
from vllm_ascend.ascend_forward_context import set_ascend_forward_context
from vllm_ascend.distributed.parallel_state import destroy_ascend_model_parallel, init_ascend_model_parallel
from vllm_ascend.utils import init_ascend_soc_version, register_ascend_customop

BACKEND = "cpu:gloo,npu:gloo"  # on hardware this is hccl, whose groups have names
ProcessGroupGloo.get_hccl_comm_name = lambda group, rank: "gloo"
# vLLM looks at a model's class in a process of its own, which would lack host.py's doings.
registry._run_in_subprocess = lambda look: look()
# Two of the models that vllm-ascend's plugin registers; others want torchvision.
registry.ModelRegistry.register_model(models.DENSE, "vllm_ascend.models.qwen3:CustomQwen3ForCausalLM")
registry.ModelRegistry.register_model(models.MOE, "vllm_ascend.models.qwen3_moe:CustomQwen3MoeForCausalLM")


@contextlib.contextmanager
def running(
    folder: Path, architecture: str, rank: int = 0, ranks: int = 1, expert_parallel: bool = False
) -> Iterator[VllmConfig]:
    """A configuration for a small model, its tensor-parallel ranks, npu:0 and bfloat16 as the defaults.

    Args:
        folder: the same for all ranks, each a process of its own.
        expert_parallel: experts are dealt out whole.
    """
    parallel = ParallelConfig(tensor_parallel_size=ranks, enable_expert_parallel=expert_parallel)
    config = VllmConfig(model_config=models.model_config(folder, architecture), parallel_config=parallel)
    init_ascend_config(config)
    with set_current_vllm_config(config):
        rendezvous = f"file://{folder / 'rendezvous'}"
        # by hand: vLLM 0.10.1 takes no backend that is put together
        torch.distributed.init_process_group(BACKEND, init_method=rendezvous, world_size=ranks, rank=rank)
        init_distributed_environment(world_size=ranks, rank=rank, local_rank=0, backend=BACKEND)
        ensure_model_parallel_initialized(ranks, 1, backend=BACKEND)
        init_ascend_model_parallel(config.parallel_config)
        init_ascend_soc_version()
        register_ascend_customop()
        torch.set_default_device("npu")
        torch.set_default_dtype(torch.bfloat16)
        try:
            yield config
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_default_device(None)
            destroy_ascend_model_parallel()
            cleanup_dist_env_and_memory()
            clear_ascend_config()


@contextlib.contextmanager
def forward(config: VllmConfig, tokens: int) -> Iterator[None]:
    """What a layer's forward pass runs in."""
    mask = torch.zeros(tokens, dtype=torch.bool)  # of its model runner
    context = set_ascend_forward_context(None, config, num_tokens=tokens, reserved_mc2_mask=mask)
    with torch.inference_mode(), context:
        yield
