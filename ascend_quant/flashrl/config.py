"""FlashRL's YAML file: a list `configs`; data-parallel replica r uses entry r modulo its length.

    configs:
    - {fn: int8, model: W8A8, profile: profile.pt, load_format: auto, distributed_executor_backend: external_launcher}
    - {fn: bf16}

Keys that only FlashRL uses are kept, and `Replica.disregarded` explains them. Columns of `setup` contain YAML;
FlashRL's contain Python code.
"""

from collections.abc import Iterable
from os.path import exists, expanduser
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError, field_validator, model_validator

from ascend_quant.files.documents import BadDocument, parse_yaml, read_yaml
from ascend_quant.files.whole_file import write_whole
from ascend_quant.flashrl.files import ConfigError, find, find_profile, is_profile_here
from ascend_quant.flashrl.functions import FUNCTIONS, Function

QUANTIZATION = "ascend_quant"  # our plugin's name in vLLM
HUB_CONFIG = "flashrl_config.yaml"  # FlashRL's name for it in hub repositories
NOT_FOLLOWED = {
    "model": (
        "the engine loads its own model and quantizes the weights that it receives, not those of a quantized checkpoint"
    ),
    "load_format": "the engine's own setting is used",
    "distributed_executor_backend": "the engine's own setting is used; external_launcher excludes asynchronous servers",
    "module_attribute_to_preserve": "it configures FlashRL's reloading, which is not used here",
}
SHOWN_FAULTS = 3  # per file


class Replica(BaseModel):
    """An entry of `configs`. Keys that are not fields are kept; FlashRL allows any.

    Attributes:
        fn: a name from `FUNCTIONS`; int8 if absent, as in FlashRL.
        profile: path or hub name of a profile; its smoothing factors are kept through every refit.
        frozen_scales: ours: whether to quantize with the profile's scales instead of the weights' own.
        ignore: ours: layers that keep their dtype, in vLLM's patterns.
        model, load_format, distributed_executor_backend, module_attribute_to_preserve, quantization: used only by
            FlashRL.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    fn: str = "int8"
    model: str | None = None
    profile: str | None = None
    load_format: str | None = None
    distributed_executor_backend: str | None = None
    module_attribute_to_preserve: list[str] | None = None
    quantization: str | None = None
    frozen_scales: StrictBool = False
    ignore: list[str] = []

    @field_validator("fn")
    @classmethod
    def _is_known(cls, fn: str) -> str:
        if fn not in FUNCTIONS:
            raise ValueError(f"unknown function; valid values: {', '.join(FUNCTIONS)}")
        return fn

    @model_validator(mode="after")
    def _has_what_ours_need(self) -> "Replica":
        if self.frozen_scales and not (self.function.scheme == "int8" and self.profile):
            raise ValueError(
                f"frozen_scales needs an int8 function and a profile: fn={self.fn}, profile={self.profile}"
            )
        return self

    @property
    def function(self) -> Function:
        return FUNCTIONS[self.fn]

    def options(self) -> dict[str, Any]:
        """Return the options of our vLLM plugin, `engine.options.Options`.

        Raises:
            ConfigError: the profile is neither a local file nor on the hub, from which it is downloaded.
        """
        options: dict[str, Any] = {"scheme": self.function.scheme}
        if self.profile and self.function.scheme == "int8":
            options["profile"] = str(find_profile(self.profile))
        if self.frozen_scales:
            options["frozen_scales"] = True
        if self.ignore:
            options["ignore"] = list(self.ignore)
        return options

    def disregarded(self) -> list[str]:
        """Return a line for each key that is read but not followed, with the reason."""
        reasons = {key: reason for key, reason in NOT_FOLLOWED.items() if getattr(self, key) is not None}
        if self.quantization not in (None, QUANTIZATION):
            reasons["quantization"] = f"fn={self.fn} decides: {QUANTIZATION}, scheme {self.function.scheme}"
        if self.profile and self.function.scheme != "int8":
            reasons["profile"] = f"fn={self.fn} needs no profile here"
        lines = [f"{key}={getattr(self, key)!r:.200}: {reason}" for key, reason in reasons.items()]
        if self.model and not self.profile and self.function.scheme == "int8":
            lines.append(
                f"no profile: FlashRL would read {self.model}/profile.pt; here none is read, and weights are "
                "not smoothed"
            )
        return lines + [
            f"{key:.80}={value!r:.200}: ascend-quant does not read this key" for key, value in self.model_extra.items()
        ]


class Config(BaseModel):
    """The whole file; `configs` in YAML.

    Attributes:
        replicas: the entries; at least one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    replicas: Annotated[list[Replica], Field(alias="configs", min_length=1)]

    def for_replica(self, rank: int) -> Replica:
        """Return the entry that data-parallel replica `rank` (from 0) uses."""
        return self.replicas[rank % len(self.replicas)]

    def write(self, path: Path) -> None:
        """Write the YAML file atomically, with only the keys that were given.

        Raises:
            OSError: the file cannot be written.
        """
        content = {"configs": [replica.model_dump(exclude_unset=True) for replica in self.replicas]}
        write_whole(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def read(path: Path) -> Config:
    """Read the config from a YAML file.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or is invalid; the message names the entry and the key.
    """
    try:
        return Config.model_validate(read_yaml(path))
    except BadDocument as error:
        raise ConfigError(str(error)) from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error)}") from error


def explain(error: ValidationError) -> str:
    """Return pydantic's error in one line: the key, the problem, and the value."""
    found = [(".".join(map(str, each["loc"])), each["msg"], each["input"]) for each in error.errors()]
    said = [f"{where or 'the file':.200}: {what} (found {value!r:.200})" for where, what, value in found]
    more = [f"and {len(said) - SHOWN_FAULTS} more"] if len(said) > SHOWN_FAULTS else []
    return " ".join("; ".join(said[:SHOWN_FAULTS] + more).split())


def check_is_config(path: Path) -> None:
    """Check that a file to be replaced is empty or has `configs`, of any content.

    Raises:
        ConfigError: the file belongs to another program, or is not a file.
    """
    if not path.is_file():
        raise ConfigError(f"{path} is not a file")
    try:
        if path.stat().st_size and "configs" not in read_yaml(path):
            raise ConfigError(f"{path} has no `configs`, so it is not a FlashRL config: give another name")
    except BadDocument as error:
        raise ConfigError(f"{error}; to replace the file, remove it first") from error


def resolve(value: str) -> Config:
    """Resolve FLASHRL_CONFIG=`value`: a function, a YAML file, or one on the hub (owner/name, owner/name/path).

    Raises:
        ConfigError: it is none of these, or the file is invalid; the message lists the functions.
    """
    name = value.strip()
    if name in FUNCTIONS:
        return Config(replicas=[Replica(fn=name)])
    is_repository = name.count("/") == 1 and not name.endswith((".yaml", ".yml")) and not exists(name)
    try:
        path = find(f"{name}/{HUB_CONFIG}" if is_repository else name)
    except ConfigError as error:
        raise ConfigError(
            f"FLASHRL_CONFIG={value!r:.200}: {error}. Valid values: {', '.join(FUNCTIONS)}; the path of a "
            "YAML file; owner/name or owner/name/path.yaml of a file on the Hugging Face hub"
        ) from error
    return read(path)


def entry(
    fn: str,
    model: str | None = None,
    profile: str | None = None,
    frozen_scales: bool = False,
    columns: Iterable[str] = (),
) -> Replica:
    """Return the entry that `setup` writes: FlashRL's keys for `fn`, the options, then the columns.

    Raises:
        ConfigError: a value is invalid, or a key is given twice.
    """
    if profile is not None and is_profile_here(profile):  # workers have other working directories
        profile = str(Path(expanduser(profile)).absolute())
    given = {"fn": fn, "model": model, "profile": profile, "frozen_scales": frozen_scales or None}
    options = {key: value for key, value in given.items() if value is not None}
    more = parse(columns)
    if twice := sorted(options.keys() & more.keys()):
        raise ConfigError(f"{twice[0]} is given both as an option and as a column: remove the column")
    defaults = FUNCTIONS[fn].flashrl_keys if fn in FUNCTIONS else {}
    try:
        return Replica(**{**defaults, **options, **more})
    except ValidationError as error:
        raise ConfigError(explain(error)) from error


def parse(columns: Iterable[str]) -> dict[str, object]:
    """Parse the columns as a mapping: `a=1 "b=[x, y]"` gives {"a": 1, "b": ["x", "y"]}.

    Raises:
        ConfigError: a column lacks "=" or a key, a key is given twice, or a value is not plain YAML.
    """
    values: dict[str, object] = {}
    for column in columns:
        key, equals, text = column.partition("=")
        if not (key and equals and key.isprintable()):
            raise ConfigError(f"column {column!r:.200} is not of the form key=value")
        if key in values:
            raise ConfigError(f"column {key:.80} is given twice")
        try:
            values[key] = parse_yaml(text, f"column {key:.80}: {text!r:.200}")
        except BadDocument as error:
            raise ConfigError(str(error)) from error
    return values


def notes(replica: Replica) -> list[str]:
    """Return remarks for the user of `setup` that the entry itself does not show."""
    lines = []
    if replica.profile and not is_profile_here(replica.profile):
        lines.append(
            f"profile {replica.profile} is not on this machine: an engine will read it as a path or a hub name"
        )
    if replica.function.flashrl_needs_profile and not replica.model:
        lines.append(f"FlashRL itself could not use this entry: its {replica.fn} needs a model, and a profile for it")
    return lines
