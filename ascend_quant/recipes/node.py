"""The top-level `recipe` node of a config: what verl does not know of a run, and a mistake in which costs hours."""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

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
        hub: its id on the hub; a run may name a folder in its place.
        folder: where `run.sh data` puts it, under the data folder, if it makes it; then there is no hub.
        experts: it is a mixture of experts, which not every engine serves in graphs.
    """

    hub: Said | None = None
    folder: Said | None = None
    experts: bool = False

    @model_validator(mode="after")
    def _is_somewhere(self) -> "Model":
        if (self.hub is None) == (self.folder is None):
            raise ValueError("give hub, or folder if run.sh data makes it")
        return self

    @property
    def place(self) -> str:
        """Model id on the hub, or the model's folder under the data folder."""
        return self.hub or self.folder or ""


class Data(Fields):
    """Fields of the data: files, by whole paths or from `folder`, and their name in `run.sh data`, if any."""

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
        out: the folder of the checkpoints.
        environment: variables for every process, over those of the stack.
        files: what the job's working directory must hold: its name there, and the file.
        ranks_for_graphs: among how many its vLLM must share experts, to serve them in captured graphs.
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
        raise RecipeError("\n".join(_line(one) for one in error.errors())) from error


def _line(one: Mapping[str, Any]) -> str:
    where, last = ".".join(["recipe", *map(str, one["loc"])]), str(one["loc"][-1] if one["loc"] else "")
    if one["type"] == "extra_forbidden":
        parts = {"model": Model, "data": Data, "memory": Memory}
        valid = parts.get(str(one["loc"][0]), Node).model_fields if len(one["loc"]) > 1 else Node.model_fields
        near = difflib.get_close_matches(last, valid, n=1)
        return f"{where}: no such key; {f'did you mean {near[0]}? ' if near else ''}Valid keys: {', '.join(valid)}"
    if one["type"] == "missing":
        return f"{where}: is missing"
    return f"{where}: is wrong: {one['msg'].removeprefix('Value error, ')}"
