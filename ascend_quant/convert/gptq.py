"""GPTQ by llm-compressor: what it makes of a model's linear layers, given texts.

Columns are rounded one after the other; what one loses, those to come make up for, as far as the layer's inputs tell
(Frantar et al., 2022, https://arxiv.org/abs/2210.17323). llm-compressor goes through the model decoder layer by decoder
layer, with the outputs of layers that are quantized already.

Its scales are compressed-tensors' (int4, symmetric), not those of `oracle.quantize`:

    here            scale = BF16(absmax / 7.5)    codes in [-8, 7]
    the oracle's    scale = BF16(absmax / 7)      codes in [-7, 7]

Readers take both. A refit quantizes new weights by the oracle's definition, whatever the engine has started from.

Shape suffixes: B samples, S tokens of one, N output channels, K input channels, G groups of a row.
"""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import torch

import ascend_quant
from ascend_quant.convert.formats import section
from ascend_quant.convert.quantizer import first_line
from ascend_quant.profile.checkpoints import BadCheckpoint
from ascend_quant.schemes import Scheme

DEVICES = ("cpu", "cuda")
INT4_MIN, INT4_MAX = -8, 7


def require() -> None:
    """Import llm-compressor; its log goes to stderr, without lines for each layer.

    Raises:
        BadCheckpoint: it is not installed, or is too old; says how to install it.
    """
    try:
        with redirect_stdout(sys.stderr):  # its log writes to what stdout is now
            from llmcompressor.modeling.moe.linearize import linearize_moe  # noqa: F401  since 0.13
            from loguru import logger
    except ImportError as error:
        root = Path(ascend_quant.__file__).parents[1]
        package = f"{root if (root / 'pyproject.toml').is_file() else 'ascend-quant'}[calibrate]"
        install = f"python3 -m venv calibrate && calibrate/bin/pip install '{package}'"
        why = "its transformers and compressed-tensors are not vLLM's"
        raise BadCheckpoint(
            f"--calibrate needs llm-compressor ({error}). Give it an environment of its own ({why}): {install}; "
            "then run calibrate/bin/ascend-quant convert"
        ) from error
    logger.remove()
    logger.add(sys.stderr, level="WARNING", filter=lambda record: record["level"].name != "METRIC")


def check_device(device: str) -> None:
    """llm-compressor takes an accelerator wherever it sees one.

    Raises:
        BadCheckpoint: that is not the device asked for.
    """
    from llmcompressor.utils.dev import get_main_device

    if (found := get_main_device().type) != device:
        hidden = "CUDA_VISIBLE_DEVICES= in the environment hides GPUs"
        raise BadCheckpoint(f"--device {device}: llm-compressor uses {found} here; give --device {found} ({hidden})")


def load(folder: Path, layers: Sequence[str]) -> torch.nn.Module:
    """The model in BF16, in main memory; experts are linear layers one by one, by the names that checkpoints have.

    Args:
        layers: that are to be quantized: names of modules.

    Raises:
        BadCheckpoint: transformers cannot load it, or has no linear layer of one of these names.
    """
    from llmcompressor.modeling.moe.linearize import linearize_moe
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, trust_remote_code=False)
    except (OSError, ValueError, ImportError) as error:
        raise BadCheckpoint(f"transformers cannot load {folder} as a language model: {first_line(error)}") from error
    linearize_moe(model)
    linear = _linear(model)
    if missing := [layer for layer in layers if layer not in linear]:
        raise BadCheckpoint(
            f"{missing[0]} (and {len(missing) - 1} more) is in {folder}, but no linear layer of the model that "
            f"transformers builds: it cannot be calibrated; leave it as it is with --ignore"
        )
    return model


def solve(model: torch.nn.Module, scheme: Scheme, layers: Sequence[str], tokens_BS: torch.Tensor) -> None:
    """Quantize these layers, in place: weights become BF16(code * scale), scales are put beside them.

    All experts see all tokens, so that none is left without: of a weight whose inputs were all zero, GPTQ makes zeros.
    What a layer of experts passes on is the router's choice, as ever.
    """
    import llmcompressor
    from llmcompressor.modifiers.gptq import GPTQModifier
    from torch.utils.data import DataLoader

    wanted = set(layers)
    modifier = GPTQModifier(
        config_groups=section("compressed-tensors", scheme, (), ())["config_groups"],
        ignore=[name for name in _linear(model) if name not in wanted],
        actorder="static",  # columns in order of importance; groups are neighbours all the same
    )
    samples = [{"input_ids": tokens_S, "attention_mask": torch.ones_like(tokens_S)} for tokens_S in tokens_BS]
    with redirect_stdout(sys.stderr):
        llmcompressor.oneshot(
            model=model,
            dataset=DataLoader(samples, batch_size=1),
            recipe=[modifier],
            num_calibration_samples=len(samples),
            max_seq_length=tokens_BS.shape[1],
            moe_calibrate_all_experts=True,
        )


def codes_and_scale(model: torch.nn.Module, layer: str, scheme: Scheme) -> tuple[torch.Tensor, torch.Tensor]:
    """int4 codes (N, K), as int8, and BF16 scales (N, G) of a layer that `solve` has quantized.

    Raises:
        BadCheckpoint: its weight is not BF16(code * scale): GPTQ has left it out.
    """
    module = model.get_submodule(layer)
    if (scale_NG := getattr(module, "weight_scale", None)) is None:
        raise BadCheckpoint(f"{layer}: llm-compressor has not quantized it")
    w_NK, scale_NG = module.weight.detach().cpu(), scale_NG.detach().cpu().to(torch.bfloat16)
    divisor = scale_NG.float().unsqueeze(-1)
    codes = (w_NK.float().unflatten(-1, (-1, scheme.group)) / divisor).round().clamp(INT4_MIN, INT4_MAX)
    if not torch.equal((codes * divisor).flatten(-2).to(torch.bfloat16), w_NK):
        raise BadCheckpoint(f"{layer}: llm-compressor has given it scales, but not quantized it")
    return codes.to(torch.int8).flatten(-2), scale_NG


def _linear(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    return {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
