"""The top-level `recipe` node of a config: what verl does not know of a run, and a mistake in which costs hours."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ascend_quant.recipes import RecipeError

Stack = Literal["cpu", "ascend-cann8.5", "ascend-cann9.1", "cuda13"]
Count = Annotated[int, Field(ge=1)]
Said = Annotated[str, Field(min_length=1)]


class Fields(BaseModel):
    """Base of a recipe's parts: no unknown key, no conversion of values, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Model(Fields):
    """Fields of the model.

    Attributes:
        hub: its id on the hub; a run may name a folder instead.
        folder: its folder under the data folder, if `run.sh data` creates it; hub is then unset.
        experts: whether it is a mixture of experts, which not every engine supports in graphs.
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
        """Model id on the hub, or the model's folder under the data folder."""
        return self.hub or self.folder or ""


class Data(Fields):
    """Fields of the data: files, as absolute paths or in `folder`, and their name in `run.sh data`, if any."""

    name: Said | None = None
    folder: Said = "data"
    train: Said
    validation: Said


class Memory(Fields):
    """Memory that the run needs, in GiB: of each device, and of each host."""

    device: Count
    host: Count


class Node(Fields):
    """Fields of the `recipe` node.

    Attributes:
        out: folder of the checkpoints.
        environment: variables for every process, which override those of the stack.
        files: files for the job's working directory: the name there, and the file's path.
        ranks_for_graphs: least number of ranks that share the experts of a model that its vLLM serves in graphs.
    """

    name: Said
    summary: Said
    stack: Stack
    model: Model
    data: Data
    memory: Memory
    out: Said
    environment: dict[str, str] = {}
    files: dict[str, str] = {}
    ranks_for_graphs: Count = 1


def node_of(tree: Mapping[str, Any]) -> Node:
    """Return the checked `recipe` node of a composed config.

    Raises:
        RecipeError: a line for each thing that is wrong.
    """
    try:
        return Node.model_validate(tree.get("recipe"))
    except ValidationError as error:
        raise RecipeError("\n".join(f"recipe.{line}" for line in lines(error, Node))) from error


def lines(error: ValidationError, model: type[BaseModel], secret: Callable[[str], bool] | None = None) -> list[str]:
    """Return a line for each thing that is wrong: the key, the value, and what is valid.

    Args:
        model: what was validated.
        secret: whether a value of that name is not to be shown; by default, no variable's is.
    """
    return [_line(one, model, secret) for one in error.errors()]


def _line(one: Any, model: type[BaseModel], secret: Callable[[str], bool] | None) -> str:
    parts = [str(part) for part in one["loc"]] or ["recipe"]
    where = parts[-1] if "." in parts[-1] else ".".join(parts)  # a setting of verl has its whole name
    if one["type"] == "extra_forbidden":
        return f"{where}: no such key; {did_you_mean(parts[-1], _keys(model, one['loc'][:-1]))}"
    if one["type"] == "missing":
        return f"{where}: is missing"
    given = "a mapping" if isinstance(one["input"], dict) else f"{one['input']!r:.200}"
    value = "***" if (secret(parts[-1]) if secret else parts[0] == "environment") else given
    return f"{where}: {value} is wrong: {one['msg'].removeprefix('Value error, ')}"


def did_you_mean(key: str, valid: Sequence[str]) -> str:
    """Return a hint with the nearest of the valid keys, if one is near, and all of them."""
    near = difflib.get_close_matches(key, valid, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"Valid keys: {', '.join(valid)}"


def _keys(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """List the keys of the part of a model that `path` leads to."""
    for key in path:
        if isinstance(key, int):  # a place in a list, whose type was found one step before
            continue
        annotation = model.model_fields[key].annotation
        kinds = (annotation, *get_args(annotation))
        model = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return list(model.model_fields)
