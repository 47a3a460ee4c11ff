"""FP8 weights of a checkpoint, with their scales.

Supported are float8_e4m3fn weights with one scale, one per output channel, or one per 128x128 block, as
compressed-tensors (`weight_scale`, shared as config.json says) and DeepSeek's format (`weight_scale_inv` of blocks)
write them.
"""

import torch

from ascend_quant import oracle
from ascend_quant.profile.checkpoints import BadCheckpoint, Checkpoint
from ascend_quant.profile.scales import FLOATS, check_scale, check_symmetric, read_groups

FP8 = "F8_E4M3"
SCALES = ("weight_scale", "weight_scale_inv")
SCALE_DTYPES = (*FLOATS, "F8_E8M0")


def codes_and_scale(checkpoint: Checkpoint, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float8_e4m3fn codes (N, K) and float32 scales: (N), (), or (ceil(N / 128), ceil(K / 128)).

    Raises:
        BadCheckpoint: see `find_scale` and `check_scale`; or the weight has zero points.
    """
    scale_name, strategy = find_scale(checkpoint, name)
    check_symmetric(checkpoint, name)
    scale = checkpoint.tensor(scale_name).float()
    check_scale(name, scale)
    shape = {"block": scale.shape, "channel": (-1,), "tensor": ()}[strategy]
    return checkpoint.tensor(name), scale.reshape(shape)


def find_scale(checkpoint: Checkpoint, name: str) -> tuple[str, str]:
    """Return the name of an FP8 weight's scale, and what shares one (channel, tensor, block), from the headers.

    Raises:
        BadCheckpoint: there is no scale, its dtype or shape contradicts config.json, or blocks have another size.
    """
    layer, shape = name.removesuffix("weight"), checkpoint.shape(name)
    there = [f"{layer}{leaf}" for leaf in SCALES if f"{layer}{leaf}" in checkpoint]
    if len(there) != 1:
        found = f"no {' and no '.join(SCALES)}" if not there else " and ".join(there)
        raise BadCheckpoint(f"{name}: {found} in {checkpoint.folder}; a weight must have exactly one of them")
    scale_name = there[0]
    if len(shape) != 2 or checkpoint.dtype(scale_name) not in SCALE_DTYPES:
        found = f"{shape} with scales in {checkpoint.dtype(scale_name)}"
        raise BadCheckpoint(
            f"{name}: {found}; an FP8 weight must have shape (N, K) and scales in {' or '.join(SCALE_DTYPES)}"
        )
    shapes = {
        "channel": [(shape[0], 1), (shape[0],)],
        "tensor": [(), (1,), (1, 1)],
        "block": [tuple(-(-length // oracle.BLOCK) for length in shape)],
    }
    said, found = _strategies(checkpoint, scale_name), checkpoint.shape(scale_name)
    strategy = next((one for one in said if found in shapes[one]), None)
    if strategy is None:
        wanted = " or ".join(f"{shapes[one][0]} ({one})" for one in said) or "none"
        raise BadCheckpoint(f"{name}: scales {found} for a weight {shape}; config.json implies {wanted}")
    return scale_name, strategy


def _strategies(checkpoint: Checkpoint, scale_name: str) -> list[str]:
    """Return the ways in which scales may be shared (channel, tensor, block), by config.json and the scale's name.

    Raises:
        BadCheckpoint: config.json does not specify blocks, or not of 128x128.
    """
    size = (oracle.BLOCK, oracle.BLOCK)
    if scale_name.endswith(SCALES[1]):
        strategies, blocks = ["block"], [tuple((checkpoint.quantization or {}).get("weight_block_size") or ())]
    elif (groups := read_groups(checkpoint)) is None:
        strategies, blocks = ["channel", "tensor"], []
    else:
        groups = [group for group in groups if (group.type, group.bits) == ("float", 8)]
        strategies = [group.strategy for group in groups]
        blocks = [group.block for group in groups if group.strategy == "block"]
    if other := [block for block in blocks if block != size]:
        where = f"{scale_name}, in {checkpoint.folder / 'config.json'}"
        raise BadCheckpoint(f"{where}: block size {other[0]} is not supported; only {oracle.BLOCK}x{oracle.BLOCK} is")
    return [one for one in ("channel", "tensor", "block") if one in strategies]
