"""The quantized layers of a checkpoint that is to be dequantized: compressed-tensors, block fp8, ModelSlim's int8.

They are found from the headers, and their dtypes and shapes are checked against config.json. Layers that cannot be
dequantized are refused before anything is written.

Shape suffixes: N output channels, K input channels, G groups of a row.
"""

from functools import partial

import torch

from ascend_quant.convert import fp8
from ascend_quant.convert.formats import BESIDE
from ascend_quant.convert.model import Expected, read_config
from ascend_quant.convert.source import quantization
from ascend_quant.oracle import NIBBLES
from ascend_quant.profile.checkpoints import MODELOPT, BadCheckpoint, Checkpoint
from ascend_quant.profile.scales import FLOATS, METHOD, Group, check_scale, read_groups
from ascend_quant.profile.w8a8 import DESCRIPTION, described_types, read_w8a8

METHODS = ((METHOD, None), ("fp8", None), ("modelopt", "FP8"))  # quant_method and quant_algo
SCALES = ("_scale", "_scale_inv")
PACKED = "_packed"
NORM_BIASES = ("norm.bias", "norm.module.bias")
ALSO_DONE = ("transform_config", "sparsity_config")  # compressed-tensors features that dequantization does not undo
INT4_REFUSED = ("_zero_point", "_g_idx")


class Quantized:
    """The quantized weights of a checkpoint, with the functions that read them.

    Attributes:
        readers: by weight name (ending in .weight), the function that reads its codes (N, K) and scales for
            `oracle.dequantize`; int4 codes are packed as by `oracle.pack_int4`.
        beside: tensors that belong to quantized weights, and are dropped.

    Raises:
        BadCheckpoint: the quantization of weights is unknown, or cannot be undone.
    """

    def __init__(self, checkpoint: Checkpoint):
        self.checkpoint, self.readers, self.beside = checkpoint, {}, set()
        if (said := quantization(checkpoint)) is None:
            self._check_plain()
            return
        section = checkpoint.quantization or {}
        method, algorithm = section.get("quant_method", METHOD), section.get("quant_algo")
        if described_types(checkpoint) is None and (method, algorithm) not in METHODS:
            undone = "compressed-tensors (int8, fp8, int4), fp8, ModelOpt's FP8 and ModelSlim's W8A8 can be undone"
            raise BadCheckpoint(f"{checkpoint.folder} is quantized ({said}); {undone}: start from the BF16 model")
        if also := [key for key in ALSO_DONE if _does_something(section.get(key))]:
            raise BadCheckpoint(
                f"{checkpoint.folder / 'config.json'} has a {also[0]}, which cannot be undone; start from the "
                "BF16 model"
            )
        self._find_int8()
        self._find_fp8()
        self._find_int4()
        if not self.readers:
            raise BadCheckpoint(
                f"{checkpoint.folder} declares a quantization, but none of its weights is int8, fp8 or int4"
            )
        layers = [name.removesuffix("weight") for name in self.readers]
        self.beside = {f"{layer}{leaf}" for layer in layers for leaf in BESIDE} & set(checkpoint.names)
        if described_types(checkpoint) is not None:
            self.beside |= self._shifts()

    def _check_plain(self) -> None:
        """Raise BadCheckpoint for codes with scales if nothing says how to read them."""
        codes = [name for name in self.checkpoint.names if self.checkpoint.dtype(name) not in FLOATS]
        stems = {name: name.removesuffix(PACKED) for name in codes}
        scaled = [name for name in codes if any(f"{stems[name]}{scale}" in self.checkpoint for scale in SCALES)]
        if scaled:
            raise BadCheckpoint(
                f"{scaled[0]} is {self.checkpoint.dtype(scaled[0])} and has a scale, like {len(scaled)} "
                f"weights in {self.checkpoint.folder}, and nothing there says how they were quantized: "
                "restore config.json's quantization_config (quant_method; weight_block_size or "
                f"config_groups), {DESCRIPTION} or {MODELOPT}"
            )

    def _find_int8(self) -> None:
        if not any(name.endswith(".weight") and self.checkpoint.dtype(name) == "I8" for name in self.checkpoint.names):
            return
        found = read_w8a8(self.checkpoint)
        if lost := [name for name in self.checkpoint.names if name.endswith(".quant_bias")]:
            raise BadCheckpoint(
                f"{lost[0]}: layers with static activation scales have an int32 bias, which cannot be "
                "dequantized; start from the BF16 model"
            )
        for name in found.quantized:
            if self.checkpoint.dtype(name) != fp8.FP8:
                found.check(name)
                self.readers[name] = partial(found.codes_and_scale, name)

    def _find_fp8(self) -> None:
        for name in self.checkpoint.names:
            if self.checkpoint.dtype(name) == fp8.FP8 and name.endswith(".weight"):
                fp8.find_scale(self.checkpoint, name)
                self.readers[name] = partial(fp8.codes_and_scale, self.checkpoint, name)

    def _find_int4(self) -> None:
        for packed in self.checkpoint.names:
            if packed.endswith(f".weight{PACKED}"):
                name = packed.removesuffix(PACKED)
                if name in self.checkpoint:
                    raise BadCheckpoint(f"both {name} and {packed} exist; remove the one that is not the weight")
                check_int4(self.checkpoint, name, self._int4_groups())
                self.readers[name] = partial(packed_and_scale, self.checkpoint, name)

    def _shifts(self) -> set[str]:
        """Return norm biases that the model lacks and ModelSlim adds when it shifts activations; they must be zero.

        Raises:
            BadCheckpoint: a bias is not zero, and the BF16 model could not have it; or transformers does not know the
                model.
        """
        biases = [name for name in self.checkpoint.names if name.endswith(NORM_BIASES)]
        known = Expected(self.checkpoint.folder, read_config(self.checkpoint.folder)).shapes if biases else {}
        added = [name for name in biases if name not in known]
        if shifting := [name for name in added if bool(self.checkpoint.tensor(name).any())]:
            raise BadCheckpoint(
                f"{shifting[0]}: the model has no such bias ({len(shifting)} of them): asymmetric outlier "
                "suppression shifts activations by it, which cannot be undone; start from the BF16 model, or "
                "quantize with a symmetric method"
            )
        return set(added)

    def _int4_groups(self) -> list[Group]:
        groups = read_groups(self.checkpoint) or []
        return [group for group in groups if (group.type, group.bits) == ("int", 4)]

    def shape(self, name: str) -> tuple[int, int]:
        """Return the shape (N, K) of a quantized weight."""
        return self.checkpoint.shape(name) if name in self.checkpoint else int4_shape(self.checkpoint, name)

    def stored_as(self, name: str) -> str:
        """Return the name of the tensor that contains the codes of a quantized weight."""
        return name if name in self.checkpoint else f"{name}{PACKED}"


def _does_something(config: object) -> bool:
    """Return whether a transform or sparsity config does anything; llm-compressor also writes empty ones."""
    return bool(config) and not (
        isinstance(config, dict) and (config.get("format") == "dense" or not any(config.values()))
    )


def packed_and_scale(checkpoint: Checkpoint, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return packed int4 codes (N, K / 8) and scales (N, G) of a weight that `check_int4` accepted.

    Raises:
        BadCheckpoint: a scale is negative, NaN or infinite.
    """
    scale = checkpoint.tensor(f"{name}_scale")
    check_scale(name, scale.float())
    return checkpoint.tensor(f"{name}{PACKED}"), scale


def check_int4(checkpoint: Checkpoint, name: str, groups: list[Group]) -> None:
    """Compare the headers of an int4 weight with its shape and with config.json.

    Args:
        groups: groups of layers in int4, in config.json.

    Raises:
        BadCheckpoint: the weight is not symmetric, has permuted columns, or contradicts its shape or config.json.
    """
    for leaf in INT4_REFUSED:
        if f"{name}{leaf}" in checkpoint:
            raise BadCheckpoint(f"{name}{leaf}: only symmetric groups of adjacent channels can be dequantized")
    if f"{name}_scale" not in checkpoint:
        raise BadCheckpoint(f"{name}: {name}_scale is missing in {checkpoint.folder}")
    rows, columns = int4_shape(checkpoint, name)
    (dtype, shape), (scale_dtype, scale_shape) = (
        (checkpoint.dtype(one), checkpoint.shape(one)) for one in (f"{name}{PACKED}", f"{name}_scale")
    )
    sizes = {columns if group.strategy == "channel" else group.size for group in groups}
    fitting = {(rows, columns // size) for size in sizes if size > 0 and columns % size == 0}
    fits = dtype == "I32" and columns % NIBBLES == 0 and shape == (rows, columns // NIBBLES)
    if not fits or scale_dtype not in FLOATS or scale_shape not in fitting:
        found = f"{dtype} {shape} with scales {scale_dtype} {scale_shape}"
        said = f"config.json has int4 in groups of {', '.join(map(str, sorted(sizes))) or 'no size'}"
        raise BadCheckpoint(f"{name}: {found} is not an int4 weight of shape ({rows}, {columns}); {said}")


def int4_shape(checkpoint: Checkpoint, name: str) -> tuple[int, int]:
    """Return the shape (N, K) of an int4 weight, from the tensor that records it.

    Raises:
        BadCheckpoint: there is no such tensor, or it is not two integers.
    """
    beside = f"{name}_shape"
    if beside not in checkpoint:
        raise BadCheckpoint(f"{name}: {beside} is missing in {checkpoint.folder}")
    if checkpoint.dtype(beside) not in ("I64", "I32") or checkpoint.shape(beside) != (2,):
        found = f"{checkpoint.dtype(beside)} {checkpoint.shape(beside)}"
        raise BadCheckpoint(f"{beside} is {found}; a weight's shape must be two integers")
    return tuple(checkpoint.tensor(beside).tolist())
