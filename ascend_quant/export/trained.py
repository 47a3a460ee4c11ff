"""Detection of the kind of checkpoint in a trainer's folder, and its export to a Hugging Face folder in BF16.

    hugging-face   verl with Megatron by default: Megatron-Bridge writes model/huggingface
    torch_dist     Megatron's own shards: verl with use_dist_checkpointing (model/dist_ckpt), slime, Megatron-LM
    fsdp           verl with FSDP: one file per rank

FP8 training changes none of them: TransformerEngine saves the weights in BF16.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ascend_quant.convert.model import INDEX, Expected, read_config, shapes
from ascend_quant.convert.pieces import not_finite
from ascend_quant.convert.source import other_files, plain_config
from ascend_quant.export.fsdp import CONFIG, Shards
from ascend_quant.export.lora import merged
from ascend_quant.export.megatron import Names, Slice, slices
from ascend_quant.export.torch_dist import TorchDist
from ascend_quant.files.documents import read_text
from ascend_quant.profile.checkpoints import BadCheckpoint
from ascend_quant.schemes.tensors import buckets

FILE_BYTES = 4 << 30
STEP = r"(?:global_step_|iter_)(\d+)"

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Trained:
    """A trainer's checkpoint.

    Attributes:
        kind: hugging-face, torch_dist or fsdp.
        folder: folder of its weights.
        model: a folder with config.json and the tokenizer, if the checkpoint has one.
        step: training step, if the folder's name contains it.
    """

    kind: str
    folder: Path
    model: Path | None
    step: int | None = None


def find(checkpoint: Path) -> Trained:
    """Detect a trainer's checkpoint in a folder of steps (of which the newest is used), a step, or its actor's folder.

    Raises:
        BadCheckpoint: there is no known checkpoint.
    """
    if not checkpoint.is_dir():
        raise BadCheckpoint(f"{checkpoint} is not a folder")
    for folder in _candidates(checkpoint):
        hugging_face = folder / "model" / "huggingface"
        if (folder / CONFIG).is_file():
            return Trained("fsdp", folder, _model(folder / "huggingface"), _step(folder))
        if any(hugging_face.glob("*.safetensors")):
            return Trained("hugging-face", hugging_face, hugging_face, _step(folder))
        for shards in (folder / "model" / "dist_ckpt", folder):
            if (shards / ".metadata").is_file():
                return Trained("torch_dist", shards, _model(hugging_face), _step(folder))
        if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
            raise BadCheckpoint(f"{folder} already is in Hugging Face format: use `ascend-quant convert`")
    raise BadCheckpoint(
        f"{checkpoint} is not a checkpoint: it has neither verl's files (fsdp_config.json, model/huggingface, "
        "model/dist_ckpt) nor Megatron's (.metadata)"
    )


def _candidates(checkpoint: Path) -> Iterator[Path]:
    """Yield the folder, its newest step (by verl's and Megatron's names), and their actors."""
    folders, newest = [checkpoint], checkpoint / "latest_checkpointed_iteration.txt"
    if newest.is_file():
        step = read_text(newest).strip()
        if not step.isdecimal():
            raise BadCheckpoint(f"{newest} says {step!r:.80}, which is not a step number; give the folder of one step")
        folders += [checkpoint / f"global_step_{step}", checkpoint / f"iter_{step.zfill(7)}"]
    for folder in folders:
        yield folder
        yield folder / "actor"
    if newest.is_file() and not any(folder.is_dir() for folder in folders[1:]):
        raise BadCheckpoint(
            f"{newest} says step {step}, but there is neither {folders[1].name} nor {folders[2].name} beside it"
        )


def _step(folder: Path) -> int | None:
    """Return the step in a folder's name or its parent's: verl's global_step_N, Megatron's iter_N; None without one."""
    places = (folder.absolute(), folder.absolute().parent)
    return next((int(found[1]) for one in places if (found := re.fullmatch(STEP, one.name))), None)


def _model(folder: Path) -> Path | None:
    return folder if (folder / "config.json").is_file() else None


def write_bf16(trained: Trained, out: Path, model: Path | None, progress: Progress) -> None:
    """Write a checkpoint of kind torch_dist or fsdp as a Hugging Face folder in BF16.

    Args:
        out: a folder that is empty or does not exist.
        model: a folder with the model's config.json and tokenizer; None for the checkpoint's own.
        progress: called with the finished and total number of parameters.

    Raises:
        BadCheckpoint: the model's folder is missing or belongs to another model; or the checkpoint is damaged, lacks a
            tensor, contains other objects, or has weights that are NaN or infinite.
        BadDocument: config.json cannot be read.
    """
    model = model or trained.model
    if model is None or not (model / "config.json").is_file():
        raise BadCheckpoint(
            f"{trained.folder} has no config.json and tokenizer: give the model's folder with --hf-model"
            if model is None
            else f"--hf-model {model} has no config.json"
        )
    list(other_files(model))  # raises an error now if a file cannot be copied
    config = read_config(model)
    if trained.kind == "fsdp":
        state = _state(Shards(trained.folder), Expected(model, config), progress)
        tensors = iter(state.items())
    else:
        stored, names, expected = TorchDist(trained.folder), Names(config), Expected(model, config)
        parameters = slices(stored, config)
        expected.check(_shapes(stored, names, parameters))
        tensors = _tensors(stored, names, parameters, progress)
    out.mkdir(parents=True, exist_ok=True)
    _write_folder(out, tensors, model, config)


def _state(shards: Shards, expected: Expected, progress: Progress) -> Mapping[str, torch.Tensor]:
    """Yield the tensors of FSDP's shards in BF16, under the names of the model's checkpoint.

    Raises:
        BadCheckpoint: the tensors are not the model's or not finite, or a tied tensor differs from its counterpart, as
            after FSDP2, which trains both.
    """
    state = {}
    for done, (name, tensor) in enumerate(merged(shards, expected)):
        progress(done, len(shards.names))
        state[name] = tensor.to(torch.bfloat16)
        if not state[name].isfinite().all():
            raise not_finite(name, tensor)
    for name, owner in expected.ties.items():
        if name in state and owner in state and not torch.equal(state.pop(name), state[owner]):
            raise BadCheckpoint(
                f"{shards.folder}: {name} differs from {owner}, although config.json ties them; set "
                "tie_word_embeddings to false in a copy of the model's folder and give it with --hf-model"
            )
    saved = expected.as_saved(state)
    expected.check(shapes(saved))
    return saved


def _shapes(stored: TorchDist, names: Names, parameters: Sequence[Slice]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that will be written, without reading them."""
    found = {}
    for one in parameters:
        size = stored.sizes[one.key][len(one.leading) :]
        for name, tensor in names.tensors(one.name, torch.empty(size, device="meta")):
            if name in found:
                raise BadCheckpoint(f"{stored.folder}: {one.key} and another tensor would both become {name}")
            found[name] = tuple(tensor.shape)
    return found


def _tensors(
    stored: TorchDist, names: Names, parameters: Sequence[Slice], progress: Progress
) -> Iterator[tuple[str, torch.Tensor]]:
    for done, one in enumerate(parameters):
        progress(done, len(parameters))
        yield from names.tensors(one.name, stored.read(one.key, one.leading))
    progress(len(parameters), len(parameters))


def _write_folder(
    out: Path, tensors: Iterator[tuple[str, torch.Tensor]], model: Path, config: Mapping[str, Any]
) -> None:
    """Write the tensors, the index, the model folder's other files, and config.json last.

    Args:
        out: an empty folder.
        model: a folder whose tokenizer, templates and other files are copied.
    """
    from safetensors.torch import save_file

    place: dict[str, Path] = {}
    total = 0
    for number, part in enumerate(map(dict, buckets(tensors, FILE_BYTES)), start=1):
        path = out / f"model-{number:05d}.safetensors"
        save_file(part, path, metadata={"format": "pt"})
        place |= dict.fromkeys(part, path)
        total += sum(tensor.nbytes for tensor in part.values())
    _index(out, place, total)
    for inside in other_files(model):
        (out / inside).parent.mkdir(parents=True, exist_ok=True)
        (out / inside).write_bytes((model / inside).read_bytes())
    kept = {key: value for key, value in plain_config(dict(config)).items() if key not in ("torch_dtype", "dtype")}
    (out / "config.json").write_text(json.dumps({**kept, "torch_dtype": "bfloat16"}, indent=2) + "\n")


def _index(out: Path, place: Mapping[str, Path], total: int) -> None:
    """Number the files, and return the index that maps tensors to files."""
    paths = list(dict.fromkeys(place.values()))
    names = {path: f"{path.stem}-of-{len(paths):05d}.safetensors" for path in paths}
    for path, name in names.items():
        path.rename(out / name)
    index = {"metadata": {"total_size": total}, "weight_map": {name: names[path] for name, path in place.items()}}
    (out / INDEX).write_text(json.dumps(index, indent=1) + "\n")
