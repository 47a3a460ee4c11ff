"""A checkpoint folder's tensors by name, read from its safetensors files one at a time."""

import json
from functools import cached_property
from pathlib import Path

import torch

from ascend_quant.profile.rules import ProfileError


class Checkpoint:
    """One file or many; nothing but headers is held."""

    def __init__(self, folder: Path):
        """Read the headers.

        Attributes:
            folder: what was given.
            index: the file that says where each tensor is; None if there is none.

        Raises:
            ProfileError: no safetensors file, one that is cut off, or one tensor in two files.
        """
        from safetensors import SafetensorError, safe_open

        self.folder = Path(folder)
        self.index: Path | None = None
        self._file_of: dict[str, Path] = {}
        self._open = {}
        for path in self._paths():
            try:
                self._open[path] = safe_open(path, framework="pt")
            except SafetensorError as error:
                raise ProfileError(f"{path} is cut off or no safetensors file ({error}); download it again") from error
            for name in self._open[path].keys():  # noqa: SIM118  not a dict
                if name in self._file_of:
                    raise ProfileError(f"{name} is in {self._file_of[name]} and in {path}; remove one of them")
                self._file_of[name] = path

    def _paths(self) -> list[Path]:
        indices = sorted(self.folder.glob("*.safetensors.index.json"))
        if len(indices) > 1:
            raise ProfileError(f"{self.folder} has {len(indices)} index files ({indices[0].name}, ...); keep one")
        if indices:
            self.index = indices[0]
            places = read_json(indices[0]).get("weight_map")
            if not isinstance(places, dict):
                raise ProfileError(f"{indices[0]} has no weight_map, which says where each tensor is")
            files = set(places.values())
            paths = [self.folder / file for file in sorted(files)]
        else:
            paths = sorted(self.folder.glob("*.safetensors"))
        missing = [path for path in paths if not path.is_file()]
        if missing or not paths:
            raise ProfileError(
                f"no checkpoint at {self.folder}: {missing[0] if missing else '*.safetensors'} not found"
            )
        return paths

    @cached_property
    def config(self) -> dict:
        """config.json."""
        path = self.folder / "config.json"
        if not path.is_file():
            raise ProfileError(f"no checkpoint at {self.folder}: config.json not found")
        return read_json(path)

    @property
    def files(self) -> list[Path]:
        """Those that hold tensors, in order."""
        return list(self._open)

    def file_of(self, name: str) -> Path:
        """Where a tensor that there is lies."""
        return self._file_of[name]

    @property
    def names(self) -> list[str]:
        """Of all tensors, in the order of the files."""
        return list(self._file_of)

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor that there is; the tensor is not read."""
        return tuple(self._slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """As safetensors calls it: BF16, I8, F8_E4M3, ..."""
        return self._slice(name).get_dtype()

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, read now."""
        return self._handle(name).get_tensor(name)

    def _slice(self, name: str):
        return self._handle(name).get_slice(name)

    def _handle(self, name: str):
        if name not in self._file_of:
            raise ProfileError(f"{self.folder} has no tensor {name}")
        return self._open[self._file_of[name]]


def read_json(path: Path) -> dict:
    """The object in a JSON file.

    Raises:
        ProfileError: it holds none.
    """
    try:
        content = json.loads(path.read_text())
    except ValueError as error:  # of JSON, or of UTF-8
        raise ProfileError(f"{path} is no JSON file: {error}") from error
    if not isinstance(content, dict):
        raise ProfileError(f"{path} holds no JSON object")
    return content


def find(model: str) -> Path:
    """The folder of a model: a local one, or a hub id, downloaded or found in the hub's cache.

    Raises:
        ProfileError: it is no folder, and the hub does not give it.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if model.count("/") != 1 or model[0] in "./~":
        raise ProfileError(f"no model at {model}: not a folder, and no hub id (OWNER/NAME)")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ProfileError(f"no folder {model}; as a hub id it needs huggingface_hub: {error}") from error
    try:
        return Path(snapshot_download(model, allow_patterns=["*.safetensors", "*.json"]))
    except (OSError, ValueError) as error:  # the hub's errors are of these
        raise ProfileError(f"no folder {model}, and the hub does not give it: {error}") from error
