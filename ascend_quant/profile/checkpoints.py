"""A checkpoint folder: its files, its JSON, and its tensors by name, which are read one at a time. torch is imported
only to read a tensor, since `launch` checks model folders before a run.
"""

import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_quant.files.documents import is_object, read_json

if TYPE_CHECKING:
    import torch

SUFFIX = ".safetensors"
WEIGHTS = (SUFFIX, ".bin", ".pth", ".pt", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx")
SECTIONS = ("quantization_config", "compression_config")  # keys of config.json; the second is an early name
MODELOPT = "hf_quant_config.json"  # NVIDIA ModelOpt's file; config.json may not mention it
TEXT = "text_config"  # key of a multimodal model's config for its language model
NUMBERED = re.compile(rf"(.*)-(\d+)-of-(\d+){re.escape(SUFFIX)}")
ADAPTER = "adapter_model"


class BadCheckpoint(ValueError):
    """Raised if a checkpoint, profile or request cannot be used; the message names the tensor or file."""


class ModelFolder:
    """A folder with config.json and safetensors files, none of which is opened."""

    def __init__(self, folder: Path):
        """Find the files.

        Attributes:
            folder: the given path.
            index: path of the index file; None if there is none.
            files: the files with tensors, in order.

        Raises:
            BadCheckpoint: there is no safetensors file, one of several is missing, or the folder contains a LoRA
                adapter.
        """
        self.folder = Path(folder)
        self.index: Path | None = None
        self.files = self._paths()

    def _paths(self) -> list[Path]:
        indices = sorted(self.folder.glob("*.safetensors.index.json"))
        if len(indices) > 1:
            raise BadCheckpoint(f"{self.folder} has {len(indices)} index files ({indices[0].name}, ...); keep one")
        if indices:
            self.index = indices[0]
            paths = [self.folder / file for file in sorted(set(self.places.values()))]
        else:
            paths = sorted(self.folder.glob(f"*{SUFFIX}"))
            paths = sorted({*paths, *(self.folder / name for path in paths for name in _counted(path.name))})
        missing = [path for path in paths if not path.is_file()]
        if missing:
            raise BadCheckpoint(f"no checkpoint at {self.folder}: {missing[0]} not found")
        if not paths:
            raise BadCheckpoint(f"no checkpoint at {self.folder}: *{SUFFIX} not found{_unread(self.folder)}")
        if adapters := [path for path in paths if path.name.startswith(ADAPTER)]:
            raise BadCheckpoint(f"{adapters[0]} is a LoRA adapter, not a model: merge it into its model first")
        return paths

    @cached_property
    def places(self) -> dict[str, str]:
        """Return the file of each tensor, from the index.

        Raises:
            BadDocument: it cannot be read.
            BadCheckpoint: the index names no files.
        """
        places = read_json(self.index).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
            raise BadCheckpoint(f"{self.index} has no weight_map, which maps tensors to files")
        return places

    @cached_property
    def config(self) -> dict:
        """Return config.json; raise BadDocument if it cannot be read."""
        return read_json(self.folder / "config.json")

    @cached_property
    def quantization(self) -> dict | None:
        """Return the quantization section of config.json (or of its text_config), or ModelOpt's; None without one."""
        parts = self.config, self.config.get(TEXT) or {}
        said = next((part[key] for part in parts for key in SECTIONS if part.get(key)), None)
        if said is None and (self.folder / MODELOPT).is_file():
            found = read_json(self.folder / MODELOPT).get("quantization")
            if is_object(found) and found.get("quant_algo"):  # null if only the cache is quantized
                return {"quant_method": "modelopt", **found}
        return said


class Checkpoint(ModelFolder):
    """The tensors of one or many files; only headers are kept in memory."""

    def __init__(self, folder: Path):
        """Read the headers.

        Raises:
            BadCheckpoint: see `ModelFolder`; or a file is truncated, or a tensor is in two files.
        """
        from safetensors import SafetensorError, safe_open

        super().__init__(folder)
        self._file_of: dict[str, Path] = {}
        self._open = {}
        for path in self.files:
            try:
                self._open[path] = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise BadCheckpoint(
                    f"{path} is truncated or not a safetensors file ({error}); download it again"
                ) from error
            for name in self._open[path].keys():  # noqa: SIM118  not a dict
                if name in self._file_of:
                    raise BadCheckpoint(f"{name} is both in {self._file_of[name]} and in {path}; remove one of them")
                self._file_of[name] = path

    def file_of(self, name: str) -> Path:
        """Return the path of the file that holds a tensor of this checkpoint."""
        return self._file_of[name]

    @property
    def names(self) -> list[str]:
        """Return the names of all tensors, in the order of the files."""
        return list(self._file_of)

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor of this checkpoint; the tensor is not read."""
        return tuple(self._slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """Return safetensors' name of a tensor's dtype: BF16, I8, F8_E4M3, ..."""
        return self._slice(name).get_dtype()

    def tensor(self, name: str) -> "torch.Tensor":
        """Read a tensor."""
        return self._handle(name).get_tensor(name)

    def values(self, name: str) -> "torch.Tensor":
        """Read a tensor that is not quantized.

        Raises:
            BadCheckpoint: its dtype is not BF16, F16, F32 or F64, or it contains NaN or infinite values.
        """
        found = self.tensor(name)
        if not found.is_floating_point() or found.dtype.itemsize < 2:
            raise BadCheckpoint(f"{name}: {found.dtype} in {self.folder}, although it is not quantized")
        if bad := int((~found.isfinite()).sum()):
            raise BadCheckpoint(f"{name}: {bad} of {found.numel()} elements in {self.folder} are NaN or infinite")
        return found

    def _slice(self, name: str):
        return self._handle(name).get_slice(name)

    def _handle(self, name: str):
        if name not in self._file_of:
            raise BadCheckpoint(f"{self.folder} has no tensor {name}")
        return self._open[self._file_of[name]]


def _unread(folder: Path) -> str:
    """Describe the weights of a folder without safetensors files; "" if there are none."""
    others = sorted(path.name for path in folder.glob("*") if path.name.endswith(WEIGHTS))
    return f"; {others[0]} cannot be read: save the model again with transformers' save_pretrained" if others else ""


def _counted(name: str) -> list[str]:
    """Return the names of all files of a checkpoint, from the name of one: model-00001-of-00002.safetensors."""
    if not (found := NUMBERED.fullmatch(name)):
        return []
    stem, number, total = found.groups()
    return [f"{stem}-{at:0{len(number)}}-of-{total}{SUFFIX}" for at in range(1, int(total) + 1)]


def find(model: str) -> Path:
    """Return the folder of a model: a local one, or that of a hub id, downloaded or from the hub's cache.

    Raises:
        BadCheckpoint: there is no such folder, and the hub does not provide it.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if model.count("/") != 1 or model[0] in "./~":
        raise BadCheckpoint(f"no model at {model}: the value must be a folder or a hub id (OWNER/NAME)")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=["*.safetensors", "*.json"]))
    except (OSError, ValueError) as error:  # the hub's errors are subclasses of these
        raise BadCheckpoint(f"{model} is not a folder, and downloading it from the hub failed: {error}") from error
