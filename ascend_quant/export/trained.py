"""Which kind of checkpoint a trainer has left in a folder, and its way to a Hugging Face folder in BF16.

    hugging-face   verl with Megatron, as it saves by default: Megatron-Bridge has written model/huggingface
    torch_dist     Megatron's own shards: verl with use_dist_checkpointing (model/dist_ckpt), slime, Megatron-LM
    fsdp           verl with FSDP: a file a rank, which verl.model_merger puts together

FP8 training changes none of them: TransformerEngine saves the weights in BF16.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ascend_quant.export import bf16_folder
from ascend_quant.export.errors import ExportError
from ascend_quant.export.megatron import Names, slices
from ascend_quant.export.torch_dist import TorchDist

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
        step = newest.read_text().strip()
        folders += [checkpoint / f"global_step_{step}", checkpoint / f"iter_{step.zfill(7)}"]
    for folder in folders:
        yield folder
        yield folder / "actor"


def _model(folder: Path) -> Path | None:
    return folder if (folder / "config.json").is_file() else None


def write_bf16(trained: Trained, out: Path, model: Path | None, progress: Progress) -> None:
    """Write a checkpoint of kind torch_dist or fsdp as a Hugging Face folder in BF16.

    Args:
        out: a folder that is empty or does not exist.
        model: a folder with the model's config.json and tokenizer; None for the checkpoint's own.
        progress: is told how many of how many parameters are done.

    Raises:
        ExportError: the model's folder is missing or another model's, or the checkpoint is damaged.
    """
    model = model or trained.model
    if model is None or not (model / "config.json").is_file():
        raise ExportError(
            f"{trained.folder} has no config.json and tokenizer beside it: give the model's folder with --hf-model"
            if model is None
            else f"--hf-model {model}: has no config.json"
        )
    out.mkdir(parents=True, exist_ok=True)
    if trained.kind == "fsdp":
        _merge_fsdp(trained.folder, model, out)
        return
    config = json.loads((model / "config.json").read_text())
    written = bf16_folder.write(out, _tensors(TorchDist(trained.folder), config, progress), model, config)
    _check(set(written), model, config)


def _tensors(stored: TorchDist, config: dict[str, Any], progress: Progress) -> Iterator[tuple[str, torch.Tensor]]:
    names, parameters = Names(config), slices(stored, config)
    for done, one in enumerate(parameters):
        progress(done, len(parameters))
        yield from names.tensors(one.name, stored.read(one.key, one.leading))
    progress(len(parameters), len(parameters))


def _check(written: set[str], model: Path, config: dict[str, Any]) -> None:
    """Raise ExportError unless the tensors are those of the model, as far as its folder says."""
    index = model / "model.safetensors.index.json"
    if index.is_file():
        expected = set(json.loads(index.read_text())["weight_map"])
    else:
        head = set() if config.get("tie_word_embeddings") else {"lm_head.weight"}
        expected = written | head | {"model.embed_tokens.weight", "model.norm.weight"}
    if config.get("tie_word_embeddings"):
        expected -= {"lm_head.weight"}
    for what, names in (("lacks", expected - written), ("has, and the model has not,", written - expected)):
        if names:
            raise ExportError(f"the checkpoint {what} {sorted(names)[0]} ({len(names)} such tensors)")


def _merge_fsdp(folder: Path, model: Path, out: Path) -> None:
    """verl's own merger, which looks for the model's config and tokenizer in huggingface/ beside the shards."""
    if model != folder / "huggingface":
        raise ExportError(
            f"--hf-model {model}: verl reads the model's config from {folder / 'huggingface'}; leave it out"
        )
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp", "--local_dir", str(folder)]
    done = subprocess.run([*command, "--target_dir", str(out)], capture_output=True, text=True)
    if done.returncode:
        raise ExportError(f"verl.model_merger has failed on {folder}:\n{(done.stdout + done.stderr)[-2000:]}")
