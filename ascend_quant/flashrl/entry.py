"""One entry of the YAML file, from the words of a command line. Columns hold YAML, where FlashRL's hold Python code."""

from collections.abc import Iterable
from os.path import expanduser
from pathlib import Path

from pydantic import ValidationError

from ascend_quant.documents import BadDocument, parse_yaml
from ascend_quant.flashrl.config import Replica, explain
from ascend_quant.flashrl.files import ConfigError, is_profile_here
from ascend_quant.flashrl.functions import FUNCTIONS


def entry(
    fn: str,
    model: str | None = None,
    profile: str | None = None,
    frozen_scales: bool = False,
    columns: Iterable[str] = (),
) -> Replica:
    """The entry that `setup` writes: what FlashRL's writes for `fn`, the options, then the columns.

    Raises:
        ConfigError: a value that is not valid, or a key that is given twice.
    """
    if profile is not None and is_profile_here(profile):  # workers start in folders of their own
        profile = str(Path(expanduser(profile)).absolute())
    given = {"fn": fn, "model": model, "profile": profile, "frozen_scales": frozen_scales or None}
    options = {key: value for key, value in given.items() if value is not None}
    more = parse(columns)
    if twice := sorted(options.keys() & more.keys()):
        raise ConfigError(f"{twice[0]} is given as an option and as a column: leave the column out")
    defaults = FUNCTIONS[fn].flashrl_keys if fn in FUNCTIONS else {}
    try:
        return Replica(**{**defaults, **options, **more})
    except ValidationError as error:
        raise ConfigError(explain(error)) from error


def parse(columns: Iterable[str]) -> dict[str, object]:
    """The columns as a mapping: `a=1 "b=[x, y]"` gives {"a": 1, "b": ["x", "y"]}.

    Raises:
        ConfigError: a column without "=" or without a key, a key given twice, or a value that is not plain YAML.
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
    """Lines for the user of `setup` on what cannot be told from the entry alone."""
    lines = []
    if replica.profile and not is_profile_here(replica.profile):
        lines.append(f"profile {replica.profile} is not on this machine: an engine takes it for a path, or a hub name")
    if replica.function.flashrl_needs_profile and not replica.model:
        lines.append(f"FlashRL itself could not use this entry: its {replica.fn} needs a model, and a profile for it")
    return lines
