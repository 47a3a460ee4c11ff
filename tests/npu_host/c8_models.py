"""Models with vllm-ascend's int8 KV cache (C8), on npu:0 of host memory, and what a trainer sends them."""

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import torch
import transformers
import vllm_ascend
from torch import nn

from ascend_quant.integrations import vllm as plugin
from ascend_quant.integrations.vllm import compat
from ascend_quant.integrations.vllm.kv_cache.options import OF_ASCEND
from ascend_quant.kv_cache.scales import AGE, INT8, sent_name
from npu_host import memory, vllm_engine

LAYERS, HEADS, KV_HEADS, SIZE = 2, 4, 2, 64
CHANNELS = KV_HEADS * SIZE
ARCHITECTURES = {"Qwen2ForCausalLM": transformers.Qwen2Config, "Qwen3ForCausalLM": transformers.Qwen3Config}
SIZES = {
    "vocab_size": 128,
    "hidden_size": HEADS * SIZE,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": SIZE,
    "max_position_embeddings": 64,
}
NAMES = {
    sent_name(f"model.layers.{layer}.self_attn", kind): (layer, kind) for layer in range(LAYERS) for kind in INT8.kinds
}
READ_BY_KERNELS = ("_c8_k_scale", "_c8_v_scale", "_c8_k_aq_scale_nz_bnsd", "_c8_v_aq_scale_nz_bnsd")


def config_of(architecture: str, **changed) -> transformers.PretrainedConfig:
    config = ARCHITECTURES[architecture](**SIZES | changed)
    config.architectures = [architecture]
    return config


@contextlib.contextmanager
def built(
    folder: Path, architecture: str = "Qwen3ForCausalLM", rank: int = 0, ranks: int = 1, **changed
) -> Iterator[tuple]:
    """The model, vLLM's configuration.

    Args:
        folder: of all ranks; where they are several, the model's configuration is there.
        changed: of the model's configuration.
    """
    plugin.register()
    from vllm.model_executor.model_loader import base_loader

    from ascend_quant.integrations.vllm_ascend.config import NpuQuantConfig

    if not (folder / "model").exists():
        config_of(architecture, **changed).save_pretrained(folder / "model")
    with vllm_engine.running(folder, architecture, rank, ranks) as config:
        config.quant_config = NpuQuantConfig(kv_cache="int8")
        if OF_ASCEND in compat.cache_dtypes():
            accept_the_dtype_of_ascend()
            config.cache_config.cache_dtype = OF_ASCEND  # as kv_cache.configure has vLLM do
        yield base_loader.initialize_model(vllm_config=config, model_config=config.model_config), config


def accept_the_dtype_of_ascend() -> None:
    """What vllm-ascend 0.30 does in a worker, one file of whose patches wants packages that are not here."""
    file = Path(vllm_ascend.__file__).parent / "patch/worker/patch_kv_cache_dtype.py"
    spec = importlib.util.spec_from_file_location(file.stem, file)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def state_of(architecture: str, seed: int) -> dict[str, torch.Tensor]:
    """A checkpoint of one step."""
    torch.manual_seed(seed)
    with torch.device("cpu"):
        model = transformers.AutoModelForCausalLM.from_config(config_of(architecture), dtype=torch.bfloat16)
    return {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"} | {
        "lm_head.weight": model.lm_head.weight.detach()
    }


def scales_of(seed: int) -> dict[str, torch.Tensor]:
    """What a trainer sends behind the weights of one step: others in every layer, kind and channel."""
    generator = torch.Generator("cpu").manual_seed(seed)
    found = {
        name: torch.rand(CHANNELS, generator=generator, dtype=torch.float32, device="cpu") * 0.1 + 0.01
        for name in NAMES
    }
    return found | {AGE: torch.zeros(1, dtype=torch.int64, device="cpu")}


def sync(model: nn.Module, *parts: dict[str, torch.Tensor]) -> None:
    """As a trainer's: one session around buckets of one buffer, which the next one overwrites."""
    pairs = [pair for part in parts for pair in part.items()]
    with plugin.refit_of(model).session():
        for start in range(0, len(pairs), 5):
            bucket = [(name, tensor.clone().npu()) for name, tensor in pairs[start : start + 5]]
            model.load_weights(bucket)
            for _, tensor in bucket:
                memory.storage(tensor).fill_(0x55)


def attentions(model: nn.Module) -> list[nn.Module]:
    return [module for name, module in model.named_modules() if name.endswith("self_attn.attn")]


def tensors_of(layer: nn.Module) -> dict[str, torch.Tensor]:
    """All that C8 keeps of a layer, its parameters and what is derived from them."""
    kept = {name: value for name, value in vars(layer).items() if name.startswith("_c8_")}
    kept.pop("_c8_scales_prepared")
    return kept | {name: buffer for name, buffer in layer.named_buffers() if "_cache_" in name}


def holds(model: nn.Module, scales: dict[str, torch.Tensor]) -> None:
    """Every tensor of every layer is of these scales: BF16 of them, and one over that in float32, without offsets."""
    for name, (index, kind) in NAMES.items():
        layer = tensors_of(attentions(model)[index])
        wanted = scales[name].to(torch.bfloat16)
        for part in (f"{kind}_cache_scale", f"_c8_{kind}_scale", f"_c8_{kind}_aq_scale_nz_bnsd"):
            assert torch.equal(layer[part].cpu().flatten(), wanted), (name, part)
        inverse = layer[f"_c8_{kind}_inv_scale"].cpu()
        assert inverse.shape == (1, KV_HEADS, SIZE)
        assert torch.equal(inverse.flatten(), (1 / wanted.double()).float()), name
        for part in (f"{kind}_cache_offset", f"_c8_{kind}_offset"):
            assert not layer[part].cpu().any()


def save_share(rank: int, ranks: int, folder: Path) -> None:
    """As one rank: two syncs, then what C8 keeps, and what vllm-ascend's own function cuts of whole parameters."""
    with built(folder, rank=rank, ranks=ranks) as (model, _):
        for step in range(2):
            sync(model, state_of("Qwen3ForCausalLM", step), scales_of(step))
        layer = attentions(model)[1]
        theirs = SimpleNamespace(**{f"{kind}_cache_offset": torch.zeros(CHANNELS) for kind in INT8.kinds})
        for kind in INT8.kinds:
            sent = scales_of(1)[sent_name("model.layers.1.self_attn", kind)]
            setattr(theirs, f"{kind}_cache_scale", sent.to(torch.bfloat16).npu())
        layer.impl._prepare_c8_scales(theirs, torch.device("npu:0"))
        refit = plugin.refit_of(model)
        refit.look()
        found = {
            "ours": {name: getattr(layer, name).cpu() for name in READ_BY_KERNELS},
            "theirs": {name: getattr(theirs, name).cpu() for name in READ_BY_KERNELS},
            "digest": refit.last_receipt.reports["kv_scales"].digest,
            "why": refit.why_not_servable(),
        }
        torch.save(found, folder / f"{rank}.pt")
