"""Which kind of checkpoint a trainer has left in a folder, and its way to a Hugging Face folder in BF16.

    hugging-face   verl with Megatron, as it saves by default: Megatron-Bridge has written model/huggingface
    torch_dist     Megatron's own shards: verl with use_dist_checkpointing (model/dist_ckpt), slime, Megatron-LM
    fsdp           verl with FSDP: a file a rank, which verl.model_merger puts together

FP8 training changes none of them: TransformerEngine saves the weights in BF16.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ascend_quant.convert.pieces import not_finite
from ascend_quant.convert.source import other_files
from ascend_quant.documents import BadDocument, read_text
from ascend_quant.export import bf16_folder, fsdp
from ascend_quant.export.errors import ExportError
from ascend_quant.export.megatron import Names, Slice, slices
from ascend_quant.export.model import Expected, read_config
from ascend_quant.export.torch_dist import TorchDist
from ascend_quant.profile.checkpoints import Checkpoint

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Trained:
    """A checkpoint.

    Attributes:
        kind: hugging-face, torch_dist or fsdp.
        folder: where its weights are.
        model: a folder with config.json and the tokenizer, if the checkpoint has one.
    """

    kind: str
    folder: Path
    model: Path | None


def find(checkpoint: Path) -> Trained:
    """What `checkpoint` holds; the folder above its newest step, or one of its steps, or that step's actor will do.

    Raises:
        ExportError: nothing that is known.
    """
    if not checkpoint.is_dir():
        raise ExportError(f"{checkpoint} is no folder")
    for folder in _candidates(checkpoint):
        hugging_face = folder / "model" / "huggingface"
        if (folder / "fsdp_config.json").is_file():
            return Trained("fsdp", folder, _model(folder / "huggingface"))
        if any(hugging_face.glob("*.safetensors")):
            return Trained("hugging-face", hugging_face, hugging_face)
        for shards in (folder / "model" / "dist_ckpt", folder):
            if (shards / ".metadata").is_file():
                return Trained("torch_dist", shards, _model(hugging_face))
        if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
            raise ExportError(f"{folder} is a Hugging Face folder already: use `ascend-quant convert`")
    raise ExportError(
        f"{checkpoint} holds no checkpoint of verl (fsdp_config.json, model/huggingface, model/dist_ckpt) and none of "
        "Megatron (.metadata)"
    )


def _candidates(checkpoint: Path) -> Iterator[Path]:
    """The folder, its newest step (verl's and Megatron's names for it), and their actors."""
    folders, newest = [checkpoint], checkpoint / "latest_checkpointed_iteration.txt"
    if newest.is_file():
        step = _step(newest)
        folders += [checkpoint / f"global_step_{step}", checkpoint / f"iter_{step.zfill(7)}"]
    for folder in folders:
        yield folder
        yield folder / "actor"
    if newest.is_file() and not any(folder.is_dir() for folder in folders[1:]):
        raise ExportError(f"{newest} says {step}, and there is no {folders[1].name} and no {folders[2].name} beside it")


def _step(newest: Path) -> str:
    try:
        step = read_text(newest).strip()
    except BadDocument as error:
        raise ExportError(str(error)) from error
    if not (step.isascii() and step.isdecimal() and len(step) < 20):
        raise ExportError(f"{newest} says {step!r:.80}, which is no step; give a step's own folder")
    return step


def _model(folder: Path) -> Path | None:
    return folder if (folder / "config.json").is_file() else None


def write_bf16(trained: Trained, out: Path, model: Path | None, progress: Progress) -> None:
    """Write a checkpoint of kind torch_dist or fsdp as a Hugging Face folder in BF16.

    Args:
        out: a folder that is empty or does not exist.
        model: a folder with the model's config.json and tokenizer; None for the checkpoint's own.
        progress: is told how many of how many parameters are done.

    Raises:
        ExportError: the model's folder is missing or another model's, or the checkpoint is damaged, lacks a tensor, or
            holds more than weights.
        ConvertError: a weight is NaN or infinite, or a file of the model's folder cannot be carried over.
        ProfileError: what verl's merger has written cannot be read.
    """
    model = model or trained.model
    if model is None or not (model / "config.json").is_file():
        raise ExportError(
            f"{trained.folder} has no config.json and tokenizer beside it: give the model's folder with --hf-model"
            if model is None
            else f"--hf-model {model}: has no config.json"
        )
    list(other_files(model))  # an error now for what cannot be carried over
    config = read_config(model)
    if trained.kind == "fsdp":
        expected = Expected(model, config)
        out.mkdir(parents=True, exist_ok=True)
        fsdp.merge(trained.folder, model, out)
        _check_merged(out, expected)
        return
    stored, names = TorchDist(trained.folder), Names(config)
    parameters = slices(stored, config)
    Expected(model, config).check(_shapes(stored, names, parameters))
    out.mkdir(parents=True, exist_ok=True)
    bf16_folder.write(out, _tensors(stored, names, parameters, progress), model, config)


def _shapes(stored: TorchDist, names: Names, parameters: Sequence[Slice]) -> dict[str, tuple[int, ...]]:
    """Of the tensors that will be written; nothing is read."""
    found = {}
    for one in parameters:
        size = stored.sizes[one.key][len(one.leading) :]
        for name, tensor in names.tensors(one.name, torch.empty(size, device="meta")):
            if name in found:
                raise ExportError(f"{stored.folder}: {one.key} and another tensor would both become {name}")
            found[name] = tuple(tensor.shape)
    return found


def _tensors(
    stored: TorchDist, names: Names, parameters: Sequence[Slice], progress: Progress
) -> Iterator[tuple[str, torch.Tensor]]:
    for done, one in enumerate(parameters):
        progress(done, len(parameters))
        yield from names.tensors(one.name, stored.read(one.key, one.leading))
    progress(len(parameters), len(parameters))


def _check_merged(out: Path, expected: Expected) -> None:
    """What verl's merger has written is the model, in finite numbers."""
    merged = Checkpoint(out)
    expected.check({name: merged.shape(name) for name in merged.names})
    for name in merged.names:
        if not (tensor := merged.tensor(name)).isfinite().all():
            raise not_finite(name, tensor)
