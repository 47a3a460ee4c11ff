"""IN: a Hugging Face folder with safetensors files, checked before anything is written."""

from collections.abc import Iterator
from pathlib import Path

from ascend_quant.convert.errors import ConvertError
from ascend_quant.profile.checkpoints import Checkpoint, read_json
from ascend_quant.profile.w8a8 import DESCRIPTION

SECTIONS = ("quantization_config", "compression_config")  # of config.json; the second is an early name
MANIFEST = "ascend_quant_manifest.json"
WEIGHTS = (".safetensors", ".bin", ".pth", ".pt", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx")
INDICES = tuple(f"{suffix}.index.json" for suffix in WEIGHTS)


def open_source(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`.

    Raises:
        ConvertError: no folder, or its index and its files disagree.
        ProfileError: no config.json, no safetensors file, a file that is cut off.
    """
    if not folder.is_dir():
        raise ConvertError(f"{folder} is no folder; give a local Hugging Face checkpoint")
    checkpoint = Checkpoint(folder)
    _ = checkpoint.config  # an error if there is none
    check_index(checkpoint)
    return checkpoint


def check_index(checkpoint: Checkpoint) -> None:
    """The index names every tensor that the files hold, in its file, and no other."""
    if checkpoint.index is None:
        return
    places = read_json(checkpoint.index)["weight_map"]
    for name, file in places.items():
        if name not in checkpoint or checkpoint.file_of(name).name != file:
            raise ConvertError(
                f"{checkpoint.index} says that {name} is in {file}, and it is not; download {file} again"
            )
    for name in checkpoint.names:
        if name not in places:
            file = checkpoint.file_of(name)
            raise ConvertError(f"{file} holds {name}, which {checkpoint.index.name} does not name; complete the index")


def quantization(checkpoint: Checkpoint) -> str | None:
    """How a checkpoint says that it is quantized; None if it says nothing."""
    if descriptions := sorted(checkpoint.folder.glob(DESCRIPTION)):
        return descriptions[0].name
    for config in (checkpoint.config, checkpoint.config.get("text_config") or {}):
        for section in SECTIONS:
            if config.get(section):
                return f"{section}: quant_method {config[section].get('quant_method')!r}"
    return None


def plain_config(config: dict) -> dict:
    """A config without what it says about quantization."""
    kept = {key: value for key, value in config.items() if key not in SECTIONS}
    if isinstance(kept.get("text_config"), dict):
        kept["text_config"] = {key: value for key, value in kept["text_config"].items() if key not in SECTIONS}
    return kept


def other_files(folder: Path) -> Iterator[Path]:
    """What is carried over: tokenizer, templates, code and so on; no weights, no indices, nothing hidden."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if not path.is_file() or any(part.startswith(".") for part in inside.parts):
            continue
        written_anew = inside.name in ("config.json", MANIFEST) and len(inside.parts) == 1
        if not (written_anew or inside.name.endswith((*WEIGHTS, *INDICES)) or inside.match(DESCRIPTION)):
            yield inside
