"""The input folder IN: a Hugging Face checkpoint with safetensors files, checked before anything is written."""

from collections.abc import Iterator
from pathlib import Path

from ascend_quant.profile.checkpoints import ADAPTER, MODELOPT, SECTIONS, TEXT, WEIGHTS, BadCheckpoint, Checkpoint
from ascend_quant.profile.w8a8 import DESCRIPTION

MANIFEST = "ascend_quant_manifest.json"
DTYPES = {"float16": "F16", "float32": "F32", "float64": "F64"}  # config.json's name of a dtype -> safetensors' name
METHOD_KEYS = ("quant_method", "quant_algo")
DTYPE_KEYS = ("torch_dtype", "dtype")
INDICES = tuple(f"{suffix}.index.json" for suffix in WEIGHTS)


def open_source(folder: Path) -> Checkpoint:
    """Return the checkpoint in `folder`.

    Raises:
        BadCheckpoint: there is no folder, config.json or safetensors file, a file is truncated, or the index does not
            match the files.
    """
    if not folder.is_dir():
        raise BadCheckpoint(f"{folder} is not a folder; give a local Hugging Face checkpoint")
    checkpoint = Checkpoint(folder)
    _ = checkpoint.config  # raises an error if there is none
    check_index(checkpoint)
    return checkpoint


def check_index(checkpoint: Checkpoint) -> None:
    """Check that the index lists exactly the tensors that the files contain."""
    if checkpoint.index is None:
        return
    places = checkpoint.places
    for name, file in places.items():
        if name not in checkpoint or checkpoint.file_of(name).name != file:
            raise BadCheckpoint(
                f"{checkpoint.index} says that {name} is in {file}, but it is not; download {file} again"
            )
    for name in checkpoint.names:
        if name not in places:
            file = checkpoint.file_of(name)
            raise BadCheckpoint(
                f"{file} holds {name}, which {checkpoint.index.name} does not list; add it to the index"
            )


def quantization(checkpoint: Checkpoint) -> str | None:
    """Return how a checkpoint is quantized, according to its files; None if they do not say."""
    if descriptions := sorted(checkpoint.folder.glob(DESCRIPTION)):
        return descriptions[0].name
    if (section := checkpoint.quantization) is None:
        return None
    by_modelopt = section.get("quant_method") == "modelopt" and (checkpoint.folder / MODELOPT).is_file()
    said = ", ".join(f"{key} {section[key]!r:.80}" for key in METHOD_KEYS if key in section)
    return f"{MODELOPT if by_modelopt else 'config.json'}: {said}"


def plain_config(config: dict) -> dict:
    """Return a config without its quantization section."""
    kept = {key: value for key, value in config.items() if key not in SECTIONS}
    if isinstance(kept.get(TEXT), dict):
        kept[TEXT] = {key: value for key, value in kept[TEXT].items() if key not in SECTIONS}
    return kept


def becoming_bf16(config: dict) -> set[str]:
    """Return the dtypes of tensors that become BF16: float16 and the model's own; other float32 tensors stay."""
    parts = config, config.get(TEXT) or {}
    own = next((part[key] for part in parts for key in DTYPE_KEYS if part.get(key)), None)
    return {"F16", *(stored for name, stored in DTYPES.items() if name == own)}


def in_bf16(config: dict) -> dict:
    """Return the config of a model after those tensors have become BF16."""
    dtypes = {name for name, stored in DTYPES.items() if stored in becoming_bf16(config)}

    def changed(key: str, value: object) -> object:
        if isinstance(value, dict):
            return {inner: changed(inner, one) for inner, one in value.items()}
        return "bfloat16" if key in DTYPE_KEYS and value in dtypes else value

    made = {key: changed(key, value) for key, value in config.items()}
    return made if any(key in made for key in DTYPE_KEYS) else made | {"torch_dtype": "bfloat16"}


def other_files(folder: Path) -> Iterator[Path]:
    """Yield the files to copy: tokenizer, templates, code; no weights, no indexes, no hidden files.

    Raises:
        BadCheckpoint: there is a broken link, a link to a folder, or a LoRA adapter, which would be dropped silently.
    """
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if any(part.startswith(".") for part in inside.parts) or (path.is_dir() and not path.is_symlink()):
            continue
        if not path.is_file():
            raise BadCheckpoint(
                f"{path} is not a regular file and cannot be copied; replace it with the file, or remove it"
            )
        if inside.name.startswith((ADAPTER, "adapter_config")):
            raise BadCheckpoint(
                f"{path} belongs to a LoRA adapter: merge the adapter into its model first (PEFT), or move the "
                "file away"
            )
        written_anew = inside.name in ("config.json", MANIFEST, MODELOPT) and len(inside.parts) == 1
        if not (written_anew or inside.name.endswith((*WEIGHTS, *INDICES)) or inside.match(DESCRIPTION)):
            yield inside
