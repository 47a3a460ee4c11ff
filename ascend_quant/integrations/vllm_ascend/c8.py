"""vllm-ascend's int8 KV cache (C8) with scales that a refit updates: one per channel of each key and value head.

Its scheme makes the cache int8. At the first forward pass, its attention derives the tensors that the kernels read from
four parameters of a layer, and never updates them:

    k_cache_scale, v_cache_scale    (kv_heads * D)     the model's dtype; code = round(value / scale), no offsets
    _c8_k_scale, .._aq_scale_..     (.., kv_heads, .., D)   views of them, read by the decode kernel
    _c8_k_inv_scale                 (1, kv_heads, D)   1 / scale, a copy, by which written values are multiplied

Captured ACL graphs keep weak references to the views. So all tensors are created here with the layer, at full size, and
a refit writes into them: addresses never change, and inverses are updated with their scales. The inverses are float32,
since BF16 ones would be off by up to 0.4 %. They are computed on the host, since the rounding of a division on an NPU
is not specified.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from vllm.config import get_current_vllm_config
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size

from ascend_quant.integrations.vllm.kv_cache.scales import attentions
from ascend_quant.integrations.vllm.layers.plain import after_loading
from ascend_quant.integrations.vllm_ascend.c8_probe import why_not_decoded
from ascend_quant.integrations.vllm_ascend.c8_refusals import why_layer_has_none
from ascend_quant.integrations.vllm_ascend.compat import AscendKVCacheMethod, C8Scheme
from ascend_quant.kv_cache.scales import INT8
from ascend_quant.refit import RefitError

PARAMETERS = {f"{kind}_cache_{part}": float(part == "scale") for kind in INT8.kinds for part in ("scale", "offset")}
VIEWS = {  # views by parameter
    f"{kind}_cache_{part}": names
    for kind in INT8.kinds
    for part, names in {
        "scale": (f"_c8_{kind}_scale", f"_c8_{kind}_aq_scale_nz_bnsd"),
        "offset": (f"_c8_{kind}_offset",),
    }.items()
}
INVERSES = tuple(f"_c8_{kind}_inv_scale" for kind in INT8.kinds)
PREPARED = "_c8_scales_prepared"  # if set, vllm-ascend's attention derives nothing


class Scheme(C8Scheme or object):
    """vllm-ascend's C8 scheme with parameters of full size from the start, which are not weights of the model."""

    def __init__(self, prefix: str):
        super().__init__({}, prefix)

    def create_weights(self, layer: nn.Module) -> None:
        """Create C8's buffers; raise RefitError, naming the layer, if C8 would be wrong for it."""
        if why := why_layer_has_none(layer, get_current_vllm_config()):
            raise RefitError(f"{self.prefix}: kv_cache=int8: {why}; set kv_cache=auto")
        super().create_weights(layer)
        for name, value in PARAMETERS.items():
            like = layer._parameters.pop(name).data
            whole = torch.full((layer.num_kv_heads * layer.head_size,), value, dtype=like.dtype, device=like.device)
            layer.register_buffer(name, whole, persistent=False)
        derive(layer, self.prefix)
        if why := why_not_decoded(layer):
            raise RefitError(f"{self.prefix}: kv_cache=int8: {why}; set kv_cache=auto")

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        after_loading(layer)


def derive(layer: nn.Module, prefix: str) -> None:
    """Make vllm-ascend's attention derive its tensors now; their addresses do not change afterwards.

    Raises:
        RefitError: this version derives a tensor in another way; the message names it.
    """
    layer.impl._prepare_c8_scales(layer, layer.k_cache_scale.device)
    for name in INVERSES:
        layer.__dict__[name] = layer.__dict__[name].float()
    known = {*INVERSES, *(name for names in VIEWS.values() for name in names), PREPARED}
    found = {name for name in vars(layer) if name.startswith("_c8_")}
    copies = {
        name
        for parameter, names in VIEWS.items()
        for name in names
        if name in found and getattr(layer, name).data_ptr() != getattr(layer, parameter).data_ptr()
    }
    if wrong := sorted((known ^ found) | copies):
        raise RefitError(
            f"{prefix}: kv_cache=int8: this vllm-ascend derives {', '.join(wrong)} differently from "
            "0.23.0.post1, so scales would not follow weight updates; set kv_cache=auto"
        )


class C8Method(AscendKVCacheMethod or object):
    """KV cache method of an attention layer, which replaces vLLM's method for caches with scales."""

    def __init__(self, prefix: str):
        super().__init__(Scheme(prefix))


class C8Buffers:
    """Scale buffers of the C8 cache of all attention layers of a model: scales, offsets and inverses; see
    `kv_cache.scales.Buffers`.

    Args:
        modules: attention layers by name.
        heads: number of key heads over all ranks.
        rank, ranks: this rank, and their number; with more ranks than heads, a head is on several ranks.
    """

    form = INT8

    def __init__(self, modules: Mapping[str, nn.Module], heads: int, rank: int, ranks: int):
        self.modules = modules
        kinds = {(layer.num_kv_heads, layer.head_size) for layer in modules.values()}
        if len(kinds) != 1:
            raise RefitError(
                f"kv_cache=int8: layers with (heads, size) {sorted(kinds)}; all layers must have the same: set "
                "kv_cache=auto"
            )
        (own, size), self._heads = kinds.pop(), heads
        self._own = slice(rank * heads // ranks, rank * heads // ranks + own)
        self.channels = heads * size

    @property
    def layers(self) -> Sequence[str]:
        return list(self.modules)

    def kept(self, values: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return scales in the model's dtype, offsets, and inverses of the scales, (kinds * own channels) each."""
        dtype = next(iter(self.modules.values())).k_cache_scale.dtype
        mine = values.view(len(INT8.kinds), self._heads, -1)[:, self._own].flatten().to(dtype).float()
        return [mine, torch.zeros_like(mine), 1 / mine]

    @torch.no_grad()
    def write(self, by_layer: Mapping[str, torch.Tensor]) -> None:
        for name, values in by_layer.items():
            for places, kept in zip(_places(self.modules[name]), self.kept(values), strict=True):
                for place, part in zip(places, kept.chunk(len(places)), strict=True):
                    place.copy_(part.view(place.shape))

    def read(self) -> Mapping[str, Sequence[torch.Tensor]]:
        """Read all layers' scales, offsets and inverses back, with one copy from the device."""
        groups = [
            [torch.cat([place.flatten().float() for place in places]) for places in _places(layer)]
            for layer in self.modules.values()
        ]
        here = torch.stack([torch.stack(one) for one in groups]).cpu()
        return {name: list(rows) for name, rows in zip(self.modules, here, strict=True)}


def _places(layer: nn.Module) -> list[list[torch.Tensor]]:
    """Return a layer's scales, offsets and inverses, each for keys and values."""
    names = (
        [f"{kind}_cache_scale" for kind in INT8.kinds],
        [f"{kind}_cache_offset" for kind in INT8.kinds],
        INVERSES,
    )
    return [[getattr(layer, name) for name in group] for group in names]


def buffers_of(model: nn.Module) -> C8Buffers:
    """Return the scale buffers of a model that was built with our method."""
    modules = attentions(model, lambda layer: isinstance(getattr(layer, "quant_method", None), C8Method))
    heads = get_current_vllm_config().model_config.get_total_num_kv_heads()
    return C8Buffers(modules, heads, get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size())
