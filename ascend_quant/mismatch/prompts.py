"""What the engines are asked: the built-in examples, or a file.

A text file holds a prompt a line. JSON lines and parquet have a column `prompt`: a string, taken as it is; chat
messages, put through the tokenizer's chat template (verl's data sets have these); or token ids.
"""

import re
from collections.abc import Iterable, Sequence
from os.path import isfile
from pathlib import Path
from typing import Any, TypeVar

from ascend_quant.documents import BadDocument, parse_json, read_text
from ascend_quant.mismatch.examples import EXAMPLES

COLUMN = "prompt"
JSON_LINES = (".jsonl", ".json")
LINE_END = re.compile(r"\r\n|\n|\r")  # and none of Unicode's, which texts hold

Prompt = str | list[dict[str, Any]] | list[int]
Item = TypeVar("Item")


class PromptError(ValueError):
    """Prompts that cannot be read; the message names the file and the row."""


def built_in() -> list[Prompt]:
    """The examples, as chats of one message."""
    return [[{"role": "user", "content": text}] for text in EXAMPLES]


def read(path: Path) -> list[Prompt]:
    """The prompts of a file.

    Raises:
        PromptError: the file, or one of its rows, is not as it should be.
    """
    if not isfile(path):
        raise PromptError(f"{path!s:.200}: there is no such file")
    if path.suffix == ".parquet":
        found = [_checked(value, f"{path}, row {i}") for i, value in enumerate(_parquet(path), start=1)]
    else:
        found = list(_from_text(path))
    if not found:
        raise PromptError(f"{path}: holds no prompt")
    return found


def evenly(items: Sequence[Item], count: int) -> list[Item]:
    """At most `count` of the items, at even distances, the first among them."""
    if len(items) <= count:
        return list(items)
    return [items[i * len(items) // count] for i in range(count)]


def _from_text(path: Path) -> Iterable[Prompt]:
    try:
        lines = LINE_END.split(read_text(path))
    except BadDocument as error:
        raise PromptError(f"{error}; a text in UTF-8 is wanted, parquet files end in .parquet") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield _checked(_column(line, where), where) if path.suffix in JSON_LINES else line


def _column(line: str, where: str) -> Any:
    try:
        row = parse_json(line, where)
    except BadDocument as error:
        raise PromptError(f"{error}; each line is an object of its own") from error
    if not isinstance(row, dict) or COLUMN not in row:
        raise PromptError(f"{where}: has no {COLUMN!r}")
    return row[COLUMN]


def _parquet(path: Path) -> list[Any]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise PromptError(f"{path}: parquet files are read with pyarrow, which is not installed") from error
    try:
        if COLUMN not in (names := parquet.read_schema(path).names):
            raise PromptError(f"{path}: has no column {COLUMN!r}; its columns: {', '.join(names):.300}")
        return parquet.read_table(path, columns=[COLUMN]).column(COLUMN).to_pylist()
    except (ArrowException, OSError, ValueError) as error:
        raise PromptError(f"{path}: {' '.join(str(error).split()):.300}") from error


def _checked(value: Any, where: str) -> Prompt:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value:
        if all(isinstance(message, dict) and {"role", "content"} <= message.keys() for message in value):
            return value
        if all(type(token) is int and token >= 0 for token in value):
            return value
    raise PromptError(f"{where}: {COLUMN!r} is {value!r:.80}; give a string, chat messages or token ids")
