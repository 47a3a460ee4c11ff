"""A Hugging Face folder, written a file at a time: no more than one file's tensors are in memory."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ascend_quant.convert.source import other_files, plain_config

FILE_BYTES = 4 << 30


def write(out: Path, tensors: Iterator[tuple[str, torch.Tensor]], model: Path, config: Mapping[str, Any]) -> list[str]:
    """Write the tensors, the index, what else a model's folder holds, and config.json last.

    Args:
        out: a folder that is empty.
        model: a folder whose tokenizer, templates and so on are carried over.

    Returns:
        The tensors' names.
    """
    from safetensors.torch import save_file

    place: dict[str, Path] = {}
    total = 0
    for number, part in enumerate(_files(tensors)):
        path = out / f"model-{number + 1:05d}.safetensors"
        save_file(part, path, metadata={"format": "pt"})
        place |= dict.fromkeys(part, path)
        total += sum(tensor.nbytes for tensor in part.values())
    _index(out, place, total)
    for inside in other_files(model):
        (out / inside).parent.mkdir(parents=True, exist_ok=True)
        (out / inside).write_bytes((model / inside).read_bytes())
    kept = {key: value for key, value in plain_config(dict(config)).items() if key not in ("torch_dtype", "dtype")}
    (out / "config.json").write_text(json.dumps({**kept, "torch_dtype": "bfloat16"}, indent=2) + "\n")
    return list(place)


def _files(tensors: Iterator[tuple[str, torch.Tensor]]) -> Iterator[dict[str, torch.Tensor]]:
    part, held = {}, 0
    for name, tensor in tensors:
        if part and held + tensor.nbytes > FILE_BYTES:
            yield part
            part, held = {}, 0
        part[name] = tensor
        held += tensor.nbytes
    yield part


def _index(out: Path, place: Mapping[str, Path], total: int) -> None:
    """Name the files by their number of all, and say which tensor is in which."""
    paths = list(dict.fromkeys(place.values()))
    names = {path: f"{path.stem}-of-{len(paths):05d}.safetensors" for path in paths}
    for path, name in names.items():
        path.rename(out / name)
    index = {"metadata": {"total_size": total}, "weight_map": {name: names[path] for name, path in place.items()}}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
