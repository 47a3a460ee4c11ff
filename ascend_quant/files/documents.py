"""Reading of JSON and YAML, with errors that name the file, and the line and key if there is one.

Duplicate YAML keys are errors, since the last one would silently win. So are numbers that only YAML 1.1 has, such as
010 (8), 1:30 (90) or 1_000 (1000). Exponents are numbers, as in YAML 1.2 (1e-6).
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard


class BadDocument(ValueError):
    """Raised for a text that is not the expected JSON or YAML; the message begins with its source."""


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        BadDocument: the file cannot be read, is not JSON, or is not an object.
    """
    content = parse_json(read_text(file), str(file))
    if not is_object(content):
        raise BadDocument(f"{file} must contain a JSON object, not {_kind(content)}")
    return content


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
        BadDocument: the file cannot be read, is not YAML, or is not a mapping.
    """
    content = parse_yaml(read_text(file), str(file))
    if not is_object(content):
        raise BadDocument(f"{file} must contain a mapping, not {_kind(content)}")
    return content


def read_text(file: Path) -> str:
    """Return the text of a UTF-8 file.

    Raises:
        BadDocument: the file does not exist, cannot be read, or is not UTF-8.
    """
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadDocument(f"{file} cannot be read: {error}") from error


def parse_json(text: str, source: str) -> Any:
    """Parse a JSON text.

    Args:
        source: where it is from, for messages.

    Raises:
        BadDocument: the text is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadDocument(f"{source} is not valid JSON: {error}") from error


def parse_yaml(text: str, source: str) -> Any:
    """Parse a YAML text.

    Args:
        source: where it is from, for messages.

    Raises:
        BadDocument: the text is not YAML; has a value other than numbers, strings, lists and mappings; has a duplicate
            key; or has a number that is not plain decimal (the message omits it, since it may be a secret).
    """
    import yaml

    try:
        return yaml.load(text, _loader())
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f" in line {error.problem_mark.line + 1}"
        raise BadDocument(f"{source} is not valid YAML: {error.problem}{line}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError for an invalid date
        raise BadDocument(f"{source} is not valid YAML: {' '.join(str(error).split())}") from error


def is_object(content: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a value was a JSON object or a YAML mapping, with string keys."""
    return isinstance(content, dict)


def is_array(content: object) -> TypeGuard[list[Any]]:
    """Return whether a value was a JSON array or a YAML sequence."""
    return isinstance(content, list)


def _kind(content: Any) -> str:
    return "nothing" if content is None else f"a {type(content).__name__}"


@cache
def _loader() -> type:
    """Return YAML's safe loader with the rules given at the top of this file."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            met: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in met:
                    said = f"the key {key.value!r:.80} appears twice"
                    raise yaml.constructor.ConstructorError(None, None, said, key.start_mark)
                met.add(str(key.value))
            return super().construct_mapping(node, deep)

        def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
            return super().construct_yaml_int(_plain(node))

        def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
            return super().construct_yaml_float(_plain(node))

    def _plain(node: yaml.ScalarNode) -> yaml.ScalarNode:
        if not_plain.search(node.value):
            said = "a number is not in plain decimal form: write only digits, or quote it if it is text"
            raise yaml.constructor.ConstructorError(None, None, said, node.start_mark)
        return node

    not_plain = re.compile(r"[:_]|^[-+]?0[0-9bx]")  # base 60, grouped digits, base 8, 2 or 16
    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
    Loader.add_constructor("tag:yaml.org,2002:float", Loader.construct_yaml_float)
    exponent = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+.0123456789"))
    return Loader
