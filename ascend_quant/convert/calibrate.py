"""`convert --calibrate`: an int4 checkpoint whose codes and scales are GPTQ's instead of round-to-nearest's.

The checkpoint is made by `convert` first, which finds all that is wrong with IN before hours of calibration; then codes
and scales are put in place of the rounded ones, so that nothing else differs. Both happen in a folder beside OUT, which
is renamed at the end. GPTQ cannot go on where it was killed: the same command begins again.
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

import torch

from ascend_quant import oracle
from ascend_quant.convert import gptq, texts
from ascend_quant.convert.conversion import Progress, Request, Summary, convert
from ascend_quant.convert.formats import Spec
from ascend_quant.convert.output import WRITING, Output, as_json, sync
from ascend_quant.convert.shard_file import Digest, ShardFile, digest_of
from ascend_quant.convert.source import MANIFEST, open_source
from ascend_quant.documents import read_json
from ascend_quant.profile.checkpoints import TEXT, BadCheckpoint, Checkpoint

PACKED, SCALE = ".weight_packed", ".weight_scale"


@dataclass(frozen=True)
class Calibration:
    """The settings of a GPTQ calibration: `samples` times `seq_len` tokens of a text file, see `texts`."""

    text: Path
    samples: int = 256
    seq_len: int = 2048


Solved = Callable[[str], tuple[torch.Tensor, torch.Tensor]]


def calibrate(request: Request, calibration: Calibration, progress: Progress = lambda done, total: None) -> Summary:
    """Convert a checkpoint to int4 with GPTQ; OUT appears when all of it is written.

    Args:
        progress: of the rounding alone; llm-compressor draws bars of its own on stderr.

    Raises:
        UnknownScheme, BadCheckpoint: one line that says what is wrong; OUT does not appear.
    """
    check(request)
    scheme, _ = request.chosen()
    out = Output(request.out)
    out.check(request.source)
    tokens_BS = _tokens(open_source(request.source), calibration)
    gptq.require()
    gptq.check_device(request.device)
    with tempfile.TemporaryDirectory(prefix=f"{out.out.name}.calibrating-", dir=out.out.parent) as folder:
        rounded = Path(folder) / "model"
        summary = convert(replace(request, out=rounded), progress)
        layers = [name.removesuffix(PACKED) for name in Checkpoint(rounded).names if name.endswith(PACKED)]
        model = gptq.load(request.source, layers)
        gptq.solve(model, scheme, layers, tokens_BS)
        put(rounded, lambda layer: gptq.codes_and_scale(model, layer, scheme), _noted(calibration))
        os.rename(rounded, out.out)
        sync(out.out.parent)
    return replace(summary, out=str(request.out))


def check(request: Request) -> None:
    """Raise BadCheckpoint for a request that GPTQ is not for."""
    scheme, _ = request.chosen()
    if scheme.codes != "int4":
        raise BadCheckpoint(f"GPTQ is for int4_g128 and int4_g32, not for {scheme.name}")
    if request.device not in gptq.DEVICES:
        raise BadCheckpoint(f"GPTQ runs on {' or '.join(gptq.DEVICES)}, not on {request.device}")


def put(folder: Path, solved: Solved, noted: dict) -> None:
    """Replace the codes and scales of an int4 checkpoint that `convert` has written, and its digests.

    Args:
        solved: codes (N, K), as int8, and scales (N, G) of a layer, by its name.
        noted: what the manifest says about it.
    """
    checkpoint, manifest = Checkpoint(folder), read_json(folder / MANIFEST)
    for path in checkpoint.files:
        manifest["files"][path.name] = _replaced(checkpoint, path, solved)._asdict()
    (folder / MANIFEST).write_bytes(as_json(manifest | {"calibration": noted}).encode())
    sync(folder)


def _replaced(checkpoint: Checkpoint, path: Path, solved: Solved) -> Digest:
    """Write one shard anew with GPTQ's codes and scales."""
    specs = {
        name: Spec(checkpoint.dtype(name), checkpoint.shape(name))
        for name in checkpoint.names
        if checkpoint.file_of(name) == path
    }
    new = path.with_name(f"{path.name}{WRITING}")
    with ShardFile(new, specs) as file:
        for name in specs:
            layer = name.removesuffix(PACKED)
            if layer != name:
                codes_NK, scale_NG = solved(layer)
                _check_not_lost(layer, codes_NK, checkpoint.tensor(name))
                for leaf, tensor in ((PACKED, oracle.pack_int4(codes_NK)), (SCALE, scale_NG)):
                    _check_shape(f"{layer}{leaf}", tensor, specs)
                    file.write(f"{layer}{leaf}", 0, tensor)
            elif f"{name.removesuffix(SCALE)}{PACKED}" not in specs:
                file.write(name, 0, checkpoint.tensor(name))
        digest = file.finish()
    new.rename(path)
    return digest


def _check_shape(name: str, tensor: torch.Tensor, specs: dict[str, Spec]) -> None:
    if tuple(tensor.shape) != specs[name].shape:
        raise BadCheckpoint(f"{name}: llm-compressor has made {tuple(tensor.shape)} of it, not {specs[name].shape}")


def _check_not_lost(layer: str, codes_NK: torch.Tensor, rounded: torch.Tensor) -> None:
    """GPTQ gives weight 0 to inputs that are 0 in all samples: to all of them, if a layer has seen no token."""
    if not codes_NK.any() and oracle.unpack_int4(rounded).any():
        unseen = "GPTQ has made its weight zero: its inputs were zero in all samples, or it has seen none"
        raise BadCheckpoint(f"{layer}: {unseen}; give other text, or leave it as it is with --ignore {layer}")


def _tokens(checkpoint: Checkpoint, calibration: Calibration) -> torch.Tensor:
    """The samples (B, S), checked against the model."""
    config = checkpoint.config | (checkpoint.config.get(TEXT) or {})
    if calibration.seq_len > (longest := config.get("max_position_embeddings", calibration.seq_len)):
        raise BadCheckpoint(f"--seq-len {calibration.seq_len}: {checkpoint.folder} takes {longest} tokens at most")
    tokenizer = texts.open_tokenizer(checkpoint.folder)
    tokens_BS = texts.pack(calibration.text, tokenizer, calibration.samples, calibration.seq_len)
    if tokens_BS.max() >= (vocabulary := config.get("vocab_size", int(tokens_BS.max()) + 1)):
        raise BadCheckpoint(
            f"{checkpoint.folder}: its tokenizer has token {tokens_BS.max()}, its model {vocabulary} tokens"
        )
    return tokens_BS


def _noted(calibration: Calibration) -> dict:
    """Return the manifest's note on the calibration: its settings, the text's checksum, and the tools' versions."""
    with calibration.text.open("rb", buffering=0) as file:
        digest = digest_of(file)
    tools = {name: version(name) for name in ("llmcompressor", "compressed-tensors", "transformers", "torch")}
    return asdict(calibration) | {"text": {"name": calibration.text.name, **digest._asdict()}, "tools": tools}
