"""The surroundings that vLLM's layers want, on npu:0 of host memory with vllm-ascend as the platform.

    with vllm_engine.running(tmp_path, models.MOE) as config:
        layer = ColumnParallelLinear(..., quant_config=...)   # vllm-ascend's class, on npu:0

vllm-ascend's attention and its worker want CANN's Python package and are out of reach here.
"""

import contextlib
import importlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch
from torch.distributed import ProcessGroupGloo
from vllm.config import ParallelConfig, VllmConfig, set_current_vllm_config
from vllm.distributed.parallel_state import (
    destroy_distributed_environment,
    destroy_model_parallel,
    ensure_model_parallel_initialized,
    init_distributed_environment,
)
from vllm_ascend import utils as ascend_utils
from vllm_ascend.ascend_config import clear_ascend_config, init_ascend_config
from vllm_ascend.ascend_forward_context import set_ascend_forward_context, set_mc2_tokens_capacity
from vllm_ascend.distributed.parallel_state import destroy_ascend_model_parallel, init_ascend_model_parallel
from vllm_ascend.utils import adapt_patch, register_ascend_customop

from npu_host import models

BACKEND = "cpu:gloo,npu:gloo"  # on hardware this is hccl, whose groups have names
ProcessGroupGloo.get_hccl_comm_name = lambda group, rank: "gloo"


@contextlib.contextmanager
def running(
    folder: Path,
    architecture: str,
    rank: int = 0,
    ranks: int = 1,
    expert_parallel: bool = False,
    settings: dict | None = None,
) -> Iterator[VllmConfig]:
    """A configuration for a small model, its tensor-parallel ranks, npu:0 and bfloat16 as the defaults.

    Args:
        folder: the same for all ranks, each a process of its own.
        expert_parallel: experts are dealt out whole.
        settings: vllm-ascend's, as `additional_config` has them.
    """
    adapt_patch(is_global_patch=True)  # as its plugins do
    ascend_utils._IS_MOE_MODEL = None  # it asks once a process, of whichever model was first
    parallel = ParallelConfig(tensor_parallel_size=ranks, enable_expert_parallel=expert_parallel)
    model = models.model_config(folder, architecture)
    config = VllmConfig(model_config=model, parallel_config=parallel, additional_config=settings or {})
    init_ascend_config(config)
    with set_current_vllm_config(config):
        rendezvous = f"file://{folder / 'rendezvous'}"
        init_distributed_environment(
            world_size=ranks, rank=rank, local_rank=0, distributed_init_method=rendezvous, backend=BACKEND
        )
        ensure_model_parallel_initialized(ranks, 1, backend=BACKEND)
        set_mc2_tokens_capacity(config, max_num_reqs=16, uniform_decode_query_len=1)  # as its worker does
        init_ascend_model_parallel(config.parallel_config)
        register_ascend_customop(config)
        torch.set_default_device("npu")
        torch.set_default_dtype(torch.bfloat16)
        try:
            yield config
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_default_device(None)
            destroy_ascend_model_parallel()
            destroy_model_parallel()
            destroy_distributed_environment()
            clear_ascend_config()


@contextlib.contextmanager
def forward(config: VllmConfig, tokens: int) -> Iterator[None]:
    """What a layer's forward pass runs in."""
    with torch.inference_mode(), set_ascend_forward_context(None, config, num_tokens=tokens):
        yield


def modelslim_config() -> type:
    """vllm-ascend's configuration for ModelSlim's checkpoints, which moved in 0.27."""
    folder = "quantization.configs" if find_spec("vllm_ascend.quantization.configs") else "quantization"
    return importlib.import_module(f"vllm_ascend.{folder}.modelslim_config").AscendModelSlimConfig
