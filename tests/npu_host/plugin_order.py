"""A process in which vLLM's plugins come in a given order: python plugin_order.py ours|theirs FOLDER, whose come first.

Afterwards a model is built and refitted. With tests/ in PYTHONPATH.
"""

import sys
from importlib.metadata import entry_points
from pathlib import Path

from npu_host import stubs

stubs.start()

import torch  # noqa: E402

from npu_host import absent, device  # noqa: E402

device.install()
absent.stand_in(absent.LINEAR_ATTENTION)
torch.npu.config.allow_internal_format = True

if __name__ == "__main__":
    first, folder = sys.argv[1:]
    from vllm.platforms import current_platform

    assert current_platform.device_type == "npu"
    plugins = list(entry_points(group="vllm.general_plugins"))
    plugins.sort(key=lambda one: (one.value.startswith("ascend_quant")) != (first == "ours"))
    assert {one.value.partition(".")[0].partition(":")[0] for one in plugins} >= {"ascend_quant", "vllm_ascend"}
    for one in plugins:
        one.load()()

    from npu_host import models, vllm_engine, whole_model

    with whole_model.built(vllm_engine.running, Path(folder), models.MOE) as (moe, model, _):
        whole_model.three_refits_are_the_oracles(moe, model)
