"""The top-level `recipe` node of a config: fields of a run that are not verl settings, and their validation."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ascend_quant.recipes import RecipeError

Stack = Literal["cpu", "ascend-cann8.5", "ascend-cann9.1", "cuda13"]
Count = Annotated[int, Field(ge=1)]
Said = Annotated[str, Field(min_length=1)]


class Fields(BaseModel):
    """Base of a recipe's parts; they are immutable, forbid unknown keys, and do not convert values."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Model(Fields):
    """Fields of the model.

    Attributes:
        hub: id of the model on the hub; a run may name a folder instead.
        folder: folder of the model in the data folder, if `run.sh data` creates the model; `hub` is then unset.
        experts: whether the model is a mixture of experts, which not every engine supports with graph capture.
    """

    hub: Said | None = None
    folder: Said | None = None
    experts: bool = False

    @model_validator(mode="after")
    def _is_somewhere(self) -> "Model":
        if (self.hub is None) == (self.folder is None):
            raise ValueError("set hub, or folder if run.sh data creates it")
        return self

    @property
    def place(self) -> str:
        """Model id on the hub, or the model's folder in the data folder."""
        return self.hub or self.folder or ""


class Data(Fields):
    """Fields of the data.

    Attributes:
        name: name of the data set in `run.sh data`, if any.
        folder: the data folder.
        train, validation: paths of the files, absolute or in `folder`.
    """

    name: Said | None = None
    folder: Said = "data"
    train: Said
    validation: Said


class Memory(Fields):
    """Memory that the run needs per device and per host, in GiB."""

    device: Count
    host: Count


class Node(Fields):
    """Fields of the `recipe` node.

    Attributes:
        name: name of the recipe.
        summary: short description of the run.
        stack: software stack for which the recipe is written.
        model: the model.
        data: the data.
        memory: memory that the run needs.
        out: output folder, which contains the checkpoints.
        offload: whether the trainer's weights and optimizer states wait in host memory while the engine generates.
        reference_offload: whether the reference policy's weights wait in host memory.
        environment: variables for every process, which override those of the stack.
        files: paths of files for the job's working directory, by their names there.
        ranks_for_graphs: minimum expert-parallel size with which the stack's vLLM serves experts with graph capture.
    """

    name: Said
    summary: Said
    stack: Stack
    model: Model
    data: Data
    memory: Memory
    out: Said
    offload: bool = False
    reference_offload: bool = False
    environment: dict[str, str] = {}
    files: dict[str, str] = {}
    ranks_for_graphs: Count = 1


def node_of(tree: Mapping[str, Any]) -> Node:
    """Validate and return the `recipe` node of a composed config.

    Raises:
        RecipeError: the node is not valid; one line per problem.
    """
    try:
        return Node.model_validate(tree.get("recipe"))
    except ValidationError as error:
        raise RecipeError("\n".join(f"recipe.{line}" for line in lines(error, Node))) from error


def lines(error: ValidationError, model: type[BaseModel], secret: Callable[[str], bool] | None = None) -> list[str]:
    """Return one line per validation error, with the key, the value, and what is valid.

    Args:
        error: the error of pydantic.
        model: the model that raised it.
        secret: function that returns whether the value of a name is a secret; by default, all variables are secrets.
    """
    return [_line(one, model, secret) for one in error.errors()]


def _line(one: Any, model: type[BaseModel], secret: Callable[[str], bool] | None) -> str:
    parts = [str(part) for part in one["loc"]] or ["recipe"]
    where = parts[-1] if "." in parts[-1] else ".".join(parts)  # the key of a verl setting is complete
    if one["type"] == "extra_forbidden":
        return f"{where}: no such key; {did_you_mean(parts[-1], _keys(model, one['loc'][:-1]))}"
    if one["type"] == "missing":
        return f"{where}: is missing"
    given = "a mapping" if isinstance(one["input"], dict) else f"{one['input']!r:.200}"
    value = "***" if (secret(parts[-1]) if secret else parts[0] == "environment") else given
    return f"{where}: {value} is wrong: {one['msg'].removeprefix('Value error, ')}"


def did_you_mean(key: str, valid: Sequence[str]) -> str:
    """Return a hint with the closest valid key, if there is a close one, and all valid keys."""
    near = difflib.get_close_matches(key, valid, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"Valid keys: {', '.join(valid)}"


def _keys(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """List the keys of the part of a model at `path`."""
    for key in path:
        if isinstance(key, int):  # an index into a list, whose element type the step before has found
            continue
        annotation = model.model_fields[key].annotation
        kinds = (annotation, *get_args(annotation))
        model = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return list(model.model_fields)
