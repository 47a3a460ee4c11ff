"""The one reader of JSON and YAML that others have written: bounded, strict, and it names the file in what it raises.

Both may hold what harms or misleads whoever reads them: numbers of a thousand digits, a thousand levels, a key twice of
which the last would win, an alias that stands for a billion nodes, text that no file can hold. Each of them is a
`BadDocument` here. YAML's numbers are decimal, as in YAML 1.2 (010 and 1:30 are refused, not 8 and 90), and it has no
dates.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeGuard, cast

MAX_BYTES = 256 << 20  # the largest checkpoints' indexes have some 20 MB
MAX_DEPTH = 64
MAX_YAML = 1 << 18  # letters: PyYAML takes some 0.1 ms for each
MAX_NODES = 100_000  # of a YAML, an alias counted as all that it stands for
MAX_DIGITS = 40  # no integer of 64 bits and no float needs more
SURROGATE = re.compile("[\ud800-\udfff]")
INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
OTHER_NUMBER = re.compile(  # what YAML 1.1 takes for another number than it looks like
    r"[-+]?(?:0[0-9_]+|0[xob][0-9a-fA-F_]+|[0-9]+_[0-9_]*(?:\.[0-9_]*)?|[0-9]+(?::[0-5]?[0-9])+(?:\.[0-9]*)?)"
)


class BadDocument(ValueError):
    """A text that is not the JSON or YAML that it should be; the message begins with where it is from."""


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        BadDocument: it is no file (a pipe would be waited for), cannot be read, holds no object, or what the first
            lines here name.
    """
    if not os.path.isfile(file):
        raise BadDocument(f"{file} is not there, or no file")
    content = parse_json(read_text(file), str(file))
    if not is_object(content):
        raise BadDocument(f"{file} holds no JSON object, but {_kind(content)}")
    return content


def read_yaml(file: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        BadDocument: it cannot be read, holds no mapping, or what the first lines here name.
    """
    content = parse_yaml(read_text(file), str(file))
    if not is_object(content):
        raise BadDocument(f"{file} holds no mapping of keys to values, but {_kind(content)}")
    return content


def read_text(file: Path) -> str:
    """A file's text, in UTF-8.

    Raises:
        BadDocument: it is not there, cannot be read, has more than MAX_BYTES or other bytes.
    """
    try:
        with open(file, "rb") as opened:
            content = opened.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise BadDocument(f"{file} has more than {MAX_BYTES >> 20} MiB")
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BadDocument(f"{file} cannot be read: {error}") from error


def parse_json(text: str, source: str) -> Any:
    """What a JSON text holds. `source`: where it is from, for messages.

    Raises:
        BadDocument: what the first lines here name.
    """
    try:
        content = json.loads(text, object_pairs_hook=_object, parse_int=_integer)
        _check(content)
    except (RecursionError, ValueError) as error:
        raise BadDocument(f"{source} is no JSON that can be taken: {_reason(error)}") from error
    return content


def parse_yaml(text: str, source: str) -> Any:
    """What a YAML text holds. `source`: where it is from, for messages.

    Raises:
        BadDocument: what the first lines here name.
    """
    import yaml

    loader = None
    try:
        if len(text) > MAX_YAML:
            raise ValueError(f"it has {len(text)} letters, {MAX_YAML} at most")
        loader = _loader()(text)
        root = loader.get_single_node()
        if root is None:
            return None
        if (nodes := _nodes(root)) > MAX_NODES:
            raise ValueError(f"its aliases stand for {nodes} nodes, {MAX_NODES} at most")
        content = loader.construct_document(root)
        _check(content)
        return content
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, TypeError) as error:  # the last two: !!bool x
        raise BadDocument(f"{source} is no YAML that can be taken: {_reason(error)}") from error
    finally:
        if loader is not None:
            loader.dispose()


def is_object(content: object) -> TypeGuard[dict[str, Any]]:
    """Whether this was a JSON object or a YAML mapping, whose keys are text."""
    return isinstance(content, dict)


def is_array(content: object) -> TypeGuard[list[Any]]:
    """Whether this was a JSON array or a YAML sequence."""
    return isinstance(content, list)


def _reason(error: Exception) -> str:
    """In one line."""
    return f"more than {MAX_DEPTH} levels" if isinstance(error, RecursionError) else " ".join(str(error).split())


def _kind(content: Any) -> str:
    return "nothing" if content is None else f"a {type(content).__name__}"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice!r:.80} is there twice")
    return made


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"{digits[:8]}.. is a number of {len(digits)} digits")
    return int(digits)


def _check(content: Any) -> None:
    """Levels, and text that UTF-8 can hold.

    Raises:
        ValueError: too many, or there is other text.
    """
    level = [content]
    for _ in range(MAX_DEPTH + 1):
        for text in level:
            if isinstance(text, str) and not text.isascii() and SURROGATE.search(text):
                raise ValueError(f"{text[:40]!r} holds half of a character (a lone surrogate)")
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise ValueError(f"more than {MAX_DEPTH} levels")


def _inside(content: Any) -> Iterator[Any]:
    if isinstance(content, dict):
        yield from content
        yield from content.values()
    elif isinstance(content, list):
        yield from content


def _nodes(root: Any) -> int:
    """How many nodes a composed YAML stands for, each alias counted as what it names.

    Raises:
        ValueError: an alias stands within what it names, or there are too many levels.
    """
    import yaml

    counted: dict[int, int] = {}

    def count(node: yaml.Node, above: tuple[int, ...]) -> int:
        if id(node) in above:
            raise ValueError(f"an alias stands within what it names, in line {node.start_mark.line + 1}")
        if len(above) > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} levels")
        if id(node) not in counted:
            parts: Iterable[yaml.Node] = ()
            if isinstance(node, yaml.SequenceNode):
                parts = node.value
            elif isinstance(node, yaml.MappingNode):
                parts = chain.from_iterable(node.value)  # keys and their values
            counted[id(node)] = 1 + sum(count(part, (*above, id(node))) for part in parts)
        return counted[id(node)]

    return count(root, ())


@cache
def _loader() -> type:
    """YAML's safe loader with these rules."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {}  # noqa: RUF012  (of the class, as in yaml)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            self._check_keys(node)
            return super().construct_mapping(node, deep=True)

        def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
            if node.tag not in KINDS:
                raise yaml.YAMLError(f"{node.tag} in line {node.start_mark.line + 1}: no such values are taken")
            return cast(Any, super().construct_object(node, deep))  # PyYAML's annotations leave it open

        def _check_keys(self, node: yaml.MappingNode) -> None:
            lines: dict[str, int] = {}
            for key, _ in node.value:
                line = key.start_mark.line + 1
                if key.tag not in (f"{TAG}str", f"{TAG}merge"):
                    raise yaml.YAMLError(f"the key {key.value!r:.80} in line {line} is no text: quote it")
                if key.value in lines:
                    raise yaml.YAMLError(f"the key {key.value!r:.80} is in line {lines[key.value]} and in line {line}")
                lines[key.value] = line

    def number(loader: Any, node: Any) -> Any:
        text = loader.construct_scalar(node)
        if INTEGER.fullmatch(text):
            return _integer(text)
        if FLOAT.fullmatch(text):
            return float(re.sub(r"(?i)\.(inf|nan)", r"\1", text))
        raise yaml.YAMLError(f"{text} in line {node.start_mark.line + 1}: write a plain decimal number, or quote it")

    TAG = "tag:yaml.org,2002:"
    KINDS = {TAG + kind for kind in ("null", "bool", "int", "float", "str", "seq", "map", "merge")}
    for kind in ("null", "bool", "merge"):
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items():
            for tag, pattern in rules:
                if tag == TAG + kind:
                    Loader.add_implicit_resolver(tag, pattern, [first])
    anywhere = re.compile(f"(?:{INTEGER.pattern}|{FLOAT.pattern}|{OTHER_NUMBER.pattern})$")
    Loader.add_implicit_resolver(f"{TAG}float", anywhere, list("-+.0123456789"))
    for kind in ("int", "float"):
        Loader.add_constructor(TAG + kind, number)
    return Loader
