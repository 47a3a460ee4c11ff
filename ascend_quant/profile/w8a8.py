"""Quantized layers of a W8A8 checkpoint, in its two formats.

compressed-tensors (llm-compressor): `weight` int8 (N, K) and `weight_scale` (N, 1); config.json names the format.
ModelSlim: the same two and `weight_offset` (N, 1); static layers also `input_scale`, `input_offset`, `quant_bias` and
`deq_scale`; quant_model_description*.json gives the type of each tensor. As vllm-ascend 0.23 reads them, in
quantization/modelslim_config.py and quantization/methods/w8a8_*.py.

Activations are quantized per token here, so static scales of activations are not used.
"""

from dataclasses import dataclass

import torch

from ascend_quant.files.documents import read_json
from ascend_quant.profile.checkpoints import BadCheckpoint, Checkpoint
from ascend_quant.profile.scales import FLOATS, check_scale, check_symmetric, read_groups

DESCRIPTION = "quant_model_description*.json"
FORMATS = ("int-quantized", "naive-quantized")
MODELSLIM_TYPES = ("W8A8", "W8A8_DYNAMIC", "W8A8_MIX")
BESIDE_WEIGHT = {
    "compressed-tensors": ("weight_scale", "weight_zero_point", "input_scale", "input_zero_point"),
    "ModelSlim": ("weight_scale", "weight_offset", "input_scale", "input_offset", "quant_bias", "deq_scale"),
}


@dataclass(frozen=True)
class W8A8:
    """A checkpoint with int8 linear layers.

    Attributes:
        format: a key of `BESIDE_WEIGHT`.
        quantized: names of the int8 weights.
        plain: names of the parameters that are not quantized.
        static: number of layers with activation scales, which are not used.
    """

    checkpoint: Checkpoint
    format: str
    quantized: frozenset[str]
    plain: frozenset[str]
    static: int

    def codes_and_scale(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return int8 codes (N, K) and float32 scales (N) of a quantized weight.

        Raises:
            BadCheckpoint: the weight is not int8, not symmetric, or not quantized per output channel.
        """
        self.check(name)
        check_symmetric(self.checkpoint, name)
        scale = self.checkpoint.tensor(f"{name}_scale").float()
        check_scale(name, scale)
        return self.checkpoint.tensor(name), scale.flatten()

    def check(self, name: str) -> None:
        """Raise BadCheckpoint if a weight's dtypes and shapes are not those of W8A8. Only headers are read."""
        dtype, shape = self.checkpoint.dtype(name), self.checkpoint.shape(name)
        if dtype != "I8" or len(shape) != 2:
            raise BadCheckpoint(
                f"{name}: {dtype} {shape} in {self.checkpoint.folder}, but a W8A8 weight must be int8 (N, K)"
            )
        scale_dtype, scale_shape = self.checkpoint.dtype(f"{name}_scale"), self.checkpoint.shape(f"{name}_scale")
        if scale_shape not in ((shape[0], 1), (shape[0],)):
            found = f"scales {scale_shape} for a weight {shape}"
            raise BadCheckpoint(f"{name}: {found}; only one scale per output channel, (N, 1), is supported")
        if scale_dtype not in FLOATS:
            raise BadCheckpoint(f"{name}: its scales are {scale_dtype}; supported: {', '.join(FLOATS)}")


def read_w8a8(checkpoint: Checkpoint) -> W8A8:
    """Classify the tensors of a W8A8 checkpoint by name.

    Raises:
        BadCheckpoint: the checkpoint is not W8A8, or has neither format.
    """
    described = described_types(checkpoint)
    kind = "ModelSlim" if described is not None else "compressed-tensors"
    if described is None:
        _check_format(checkpoint)
        groups = read_groups(checkpoint) or []
        if others := [group for group in groups if (group.type, group.bits, group.strategy) != ("int", 8, "channel")]:
            found = f"{others[0].type}, {others[0].bits} bits, a scale for each {others[0].strategy}"
            raise BadCheckpoint(
                f"{checkpoint.folder}: weights of type {found} are not supported; only int, 8 bits, one scale per "
                "channel"
            )
        quantized = {name for name in checkpoint.names if f"{name}_scale" in checkpoint and name.endswith(".weight")}
    else:
        quantized = {name for name in checkpoint.names if described.get(name, "FLOAT") in MODELSLIM_TYPES}
        quantized = {name for name in quantized if name.endswith(".weight")}
    if not quantized:
        raise BadCheckpoint(f"{checkpoint.folder} declares a quantization ({kind}) but has no quantized weight")
    layers = {name.removesuffix("weight") for name in quantized}
    beside = {f"{layer}{leaf}" for layer in layers for leaf in BESIDE_WEIGHT[kind]}
    static = sum(f"{layer}input_scale" in checkpoint for layer in layers)
    plain = set(checkpoint.names) - quantized - beside
    return W8A8(checkpoint, kind, frozenset(quantized), frozenset(plain), static)


def described_types(checkpoint: Checkpoint) -> dict[str, str] | None:
    """Return ModelSlim's type of each tensor; None without a description.

    Raises:
        BadCheckpoint: there are two descriptions, or a weight is not W8A8.
    """
    files = sorted(checkpoint.folder.glob(DESCRIPTION))
    if len(files) > 1:
        raise BadCheckpoint(f"{checkpoint.folder} has {len(files)} descriptions ({files[0].name}, ...); keep one")
    if not files:
        return None
    content = read_json(files[0])
    types = {name: kind for name, kind in content.items() if isinstance(kind, str) and name in checkpoint}
    for name, kind in types.items():
        if kind not in ("FLOAT", *MODELSLIM_TYPES):
            raise BadCheckpoint(f"{name}: {kind} in {files[0]}; supported: FLOAT, {', '.join(MODELSLIM_TYPES)}")
    return types


def _check_format(checkpoint: Checkpoint) -> None:
    """Raise BadCheckpoint unless the format is compressed-tensors W8A8; its section may have an early name."""
    config = checkpoint.quantization
    if config is None:
        wanted = f"config.json has no quantization_config, and there is no {DESCRIPTION}"
        raise BadCheckpoint(f"{checkpoint.folder} is not a W8A8 checkpoint: {wanted}")
    method, kind = config.get("quant_method", "compressed-tensors"), config.get("format")
    if method != "compressed-tensors" or kind not in FORMATS:
        read = f"compressed-tensors {' or '.join(FORMATS)}, and ModelSlim"
        found = f"quant_method {method!r:.80}, format {kind!r:.80}"
        raise BadCheckpoint(f"{checkpoint.folder}: {found} is not supported; supported: {read}")
