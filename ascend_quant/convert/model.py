"""The tensors of a model, from transformers' class for its config.json, built without memory for weights."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ascend_quant.files.documents import read_json
from ascend_quant.profile.checkpoints import BadCheckpoint

INDEX = "model.safetensors.index.json"
HEAD = "lm_head.weight"
LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
Shapes = Mapping[str, tuple[int, ...]]


def shapes(tensors: Mapping[str, torch.Tensor]) -> Shapes:
    """Return the shapes of tensors, by name."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def read_config(model: Path) -> dict[str, Any]:
    """Read a model's config.json.

    Raises:
        BadDocument: it cannot be read.
        BadCheckpoint: the file names no architecture.
    """
    path = model / "config.json"
    config = read_json(path)
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise BadCheckpoint(f"{path}: architectures is {names!r:.80}; it must name the model's class")
    return config


class Expected:
    """The tensors that a model must have according to its folder.

    Attributes:
        shapes: shapes of the model's checkpoint tensors, by name, without a tied head.
        ties: for each tied parameter, the one to which it is tied, by the model's names, not a checkpoint's.
        linear: the linear layers, by the model's names.
        more: maximum number of multi-token prediction layers beyond the model's own layers.

    Raises:
        BadCheckpoint: transformers has no such model, or cannot build it from config.json.
    """

    def __init__(self, model: Path, config: Mapping[str, Any]):
        self.folder, self.layers = model, config.get("num_hidden_layers")
        self.more = config.get("num_nextn_predict_layers") or 0
        self._built = built = _built(model, config["architectures"][0])
        self.shapes = shapes(self.as_saved(built.state_dict()))
        self.ties = _ties(built)
        self.linear = {name for name, module in built.named_modules() if isinstance(module, torch.nn.Linear)}
        self.tied = bool(getattr(built.config.get_text_config(), "tie_word_embeddings", False))
        if self.tied:
            self.shapes.pop(HEAD, None)

    def as_saved(self, state: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return the model's tensors under checkpoint names; transformers, for example, stacks experts."""
        try:
            from transformers.core_model_loading import revert_weight_conversion
        except ImportError:  # before transformers 5, which renames only parts of multimodal models
            renamed = getattr(self._built, "_checkpoint_conversion_mapping", {})
            return {_renamed(name, renamed): tensor for name, tensor in state.items()}
        return revert_weight_conversion(self._built, dict(state))

    def check(self, found: Shapes) -> None:
        """Compare a checkpoint's tensors with the model's, and with the index beside its config.json, if there is one.

        Raises:
            BadCheckpoint: a tensor is unexpected, missing, or has another shape.
        """
        mine = {name for name in found if not self._beyond(name)}
        self._compare(mine, set(self.shapes))
        for name in sorted(mine):
            if found[name] != self.shapes[name]:
                raise BadCheckpoint(
                    f"{name} is {found[name]} in the checkpoint, but {self.shapes[name]} according to "
                    f"{self.folder / 'config.json'}"
                )
        if (self.folder / INDEX).is_file():
            places = read_json(self.folder / INDEX).get("weight_map") or {}
            self._compare(set(found), set(places) - ({HEAD} if self.tied else set()))

    def _compare(self, found: set[str], wanted: set[str]) -> None:
        for where, names in (("checkpoint", wanted - found), ("model", found - wanted)):
            if names:
                raise BadCheckpoint(f"the {where} has no tensor {min(names)} ({len(names)} such tensors)")

    def _beyond(self, name: str) -> bool:
        """Return whether a tensor belongs to a multi-token prediction layer, which transformers' classes lack."""
        layer = LAYER.search(name)
        return bool(layer and self.layers and 0 <= int(layer[1]) - self.layers < self.more)


def _built(model: Path, architecture: str) -> Any:
    import transformers

    kind = getattr(transformers, architecture, None)
    if not hasattr(kind, "config_class"):
        raise BadCheckpoint(
            f"transformers {transformers.__version__} has no model class {architecture!r:.80}, which defines "
            "the model's tensors; install a version that has it"
        )
    try:
        config = kind.config_class.from_pretrained(model)
        with torch.device("meta"):
            return kind(config)
    except Exception as error:  # an invalid config.json can cause any exception
        reason = " ".join(str(error).split())
        raise BadCheckpoint(f"{model / 'config.json'} cannot build a {architecture}: {reason:.300}") from error


def _ties(built: Any) -> dict[str, str]:
    first: dict[int, str] = {}
    named = built.named_parameters(remove_duplicate=False)
    return {name: owner for name, one in named if (owner := first.setdefault(id(one), name)) != name}


def _renamed(name: str, mapping: Mapping[str, str]) -> str:
    """Return the name under which transformers 4 saves `name`; `mapping` is from checkpoint names (regex)."""
    for saved, own in mapping.items():
        if re.match(own, name):
            return re.sub(f"^{own}", re.sub(r"\(.*\)", "", saved.lstrip("^")), name)
    return name
