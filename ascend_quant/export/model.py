"""The tensors that a model has: transformers' own class for its config.json, built without memory for weights."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ascend_quant.documents import BadDocument, read_json
from ascend_quant.export.errors import ExportError

INDEX = "model.safetensors.index.json"
HEAD = "lm_head.weight"
SIZES = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "vocab_size")
LARGEST = {"num_hidden_layers": 10_000}
TOO_LARGE = 1 << 31
LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
Shapes = Mapping[str, tuple[int, ...]]


def read_config(model: Path) -> dict[str, Any]:
    """A model's config.json.

    Raises:
        ExportError: there is none that can be taken, it names no architecture, or a size is no number.
    """
    path = model / "config.json"
    try:
        config = read_json(path)
    except BadDocument as error:
        raise ExportError(str(error)) from error
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ExportError(f"{path}: architectures is {names!r:.80}; it names the model's class")
    text = config.get("text_config")
    for part in (config, text if isinstance(text, dict) else {}):
        for key in SIZES:
            size = part.get(key, 1)
            if size is not None and not (type(size) is int and 0 < size <= LARGEST.get(key, TOO_LARGE)):
                raise ExportError(f"{path}: {key} is {size!r:.80}, which no model has")
    return config


class Expected:
    """What a model's folder says about its tensors.

    Attributes:
        shapes: of the tensors of a checkpoint of the model, by name; without a head that is tied.
        more: how many layers of multi-token prediction there may be beyond the model's own.

    Raises:
        ExportError: transformers has no such model, or cannot build it from config.json, or a size in it is none.
    """

    def __init__(self, model: Path, config: Mapping[str, Any]):
        self.folder, self.layers = model, config.get("num_hidden_layers")
        self.more = config.get("num_nextn_predict_layers") or 0
        if type(self.more) is not int:
            raise ExportError(f"{model / 'config.json'}: num_nextn_predict_layers is {self.more!r:.80}, and no number")
        built = _built(model, config["architectures"][0])
        self.shapes = {name: tuple(tensor.shape) for name, tensor in _as_saved(built).items()}
        self.tied = bool(getattr(built.config.get_text_config(), "tie_word_embeddings", False))
        if self.tied:
            self.shapes.pop(HEAD, None)

    def check(self, found: Shapes) -> None:
        """Compare a checkpoint's tensors with the model's, and with the index beside its config.json, if there is one.

        Raises:
            ExportError: a tensor too many, too few, or of another shape.
        """
        mine = {name for name in found if not self._beyond(name)}
        self._compare(mine, set(self.shapes))
        for name in sorted(mine):
            if found[name] != self.shapes[name]:
                raise ExportError(
                    f"{name} is {found[name]} in the checkpoint, {self.shapes[name]} by {self.folder / 'config.json'}"
                )
        if (self.folder / INDEX).is_file():
            self._compare(set(found), self._indexed() - ({HEAD} if self.tied else set()))

    def _compare(self, found: set[str], wanted: set[str]) -> None:
        for what, names in (("lacks", wanted - found), ("has, and the model has not,", found - wanted)):
            if names:
                raise ExportError(f"the checkpoint {what} {min(names)} ({len(names)} such tensors)")

    def _beyond(self, name: str) -> bool:
        """Whether a tensor is of a layer of multi-token prediction, which transformers' classes do not have."""
        layer = LAYER.search(name)
        return bool(layer and self.layers and 0 <= int(layer[1]) - self.layers < self.more)

    def _indexed(self) -> set[str]:
        try:
            places = read_json(self.folder / INDEX).get("weight_map")
        except BadDocument as error:
            raise ExportError(str(error)) from error
        if not isinstance(places, dict):
            raise ExportError(f"{self.folder / INDEX} has no weight_map, which names the model's tensors")
        return set(places)


def _built(model: Path, architecture: str) -> Any:
    import transformers

    kind = getattr(transformers, architecture, None)
    if not hasattr(kind, "config_class"):
        raise ExportError(
            f"transformers {transformers.__version__} has no model {architecture!r:.80}, so that nobody knows which "
            f"tensors it has; install a version that has"
        )
    try:
        config = kind.config_class.from_pretrained(model)
        with torch.device("meta"):
            return kind(config)
    except Exception as error:  # what a wrong config.json makes of it is anything
        reason = " ".join(str(error).split())
        raise ExportError(f"{model / 'config.json'} does not make a {architecture}: {reason:.300}") from error


def _as_saved(built: Any) -> Mapping[str, torch.Tensor]:
    """The model's tensors by the names that checkpoints have: transformers holds experts in stacks, for one."""
    state = built.state_dict()
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # before transformers 5, which renames parts of models of several kinds of input alone
        return {_renamed(name, getattr(built, "_checkpoint_conversion_mapping", {})): state[name] for name in state}
    return revert_weight_conversion(built, state)


def _renamed(name: str, mapping: Mapping[str, str]) -> str:
    """As transformers 4 saves it: `mapping` is from a checkpoint's names, regular expressions, to the model's."""
    for saved, own in mapping.items():
        if re.match(own, name):
            return re.sub(f"^{own}", re.sub(r"\(.*\)", "", saved.lstrip("^")), name)
    return name
