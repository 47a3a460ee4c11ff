"""Calibration texts: rows of a file, as samples of equally many tokens.

.txt        texts parted by blank lines
.jsonl      an object a line
.parquet    a table

The column is the first of `COLUMNS` that the first row has: a string, taken as it is, or chat messages, put through the
tokenizer's chat template (verl's data sets have these). Rows come in the file's order, no further than needed; their
tokens follow each other and are cut into samples, as in GPTQ's own experiments (Frantar et al., 2022).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ascend_quant.convert.quantizer import first_line
from ascend_quant.documents import parse_json
from ascend_quant.profile.checkpoints import BadCheckpoint

COLUMNS = ("text", "messages", "prompt")
KINDS = (".txt", ".jsonl", ".parquet")
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model")

Text = str | list[dict[str, Any]]


def read(path: Path) -> Iterator[Text]:
    """The texts of a file; empty ones are left out.

    Raises:
        BadCheckpoint: the file, or one of its rows, is not as it should be.
    """
    if path.suffix not in KINDS:
        raise BadCheckpoint(f"{path}: texts are read from {', '.join(KINDS)} files")
    if path.suffix == ".txt":
        yield from _paragraphs(path)
        return
    for where, value in rows(path, COLUMNS):
        if value is not None and len(checked := _checked(value, where)):
            yield checked


def rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the place in words and the column's value of each row of JSON lines or of a parquet file.

    Args:
        columns: names, of which the first is taken that the first row has.

    Raises:
        BadCheckpoint: the file cannot be read, or has none of the columns.
        BadDocument: a line is no JSON.
    """
    values = _parquet(path, columns) if path.suffix == ".parquet" else _json_lines(path, columns)
    for number, value in enumerate(values, start=1):
        yield f"{path}, row {number}", value


def pack(path: Path, tokenizer: Any, samples: int, length: int) -> torch.Tensor:
    """Token ids (samples, length), int64, of a file's first texts.

    Args:
        tokenizer: Hugging Face's; strings are followed by its end-of-sequence token, if it has one.

    Raises:
        BadCheckpoint: what `read` raises; chats, and no chat template or one that fails; too few tokens: says how many
            samples.
    """
    tokens: list[int] = []
    for text in read(path):
        if not isinstance(text, str) and not tokenizer.chat_template:
            raise BadCheckpoint(f"{path}: it has chat messages, and the tokenizer no chat template; give plain texts")
        tokens += _encoded(text, tokenizer, path)
        if len(tokens) >= samples * length:
            return torch.tensor(tokens[: samples * length]).view(samples, length)
    if not tokens:
        raise BadCheckpoint(f"{path}: has no text in it; every row is empty")
    found = len(tokens) // length
    fewer = f"--samples {found}, a smaller --seq-len" if found else "a smaller --seq-len"
    raise BadCheckpoint(
        f"{path}: its {len(tokens):,} tokens are {found} samples of {length}, {samples} are asked for; give {fewer} or "
        "more text"
    )


def open_tokenizer(folder: Path) -> Any:
    """The tokenizer of a checkpoint.

    Raises:
        BadCheckpoint: there is none, or it cannot be read. (Without a vocabulary, transformers makes up an empty one.)
    """
    from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in VOCABULARIES):
        files = ", ".join(VOCABULARIES)
        raise BadCheckpoint(f"{folder} has no tokenizer ({files}): texts cannot be read; copy the model's own into it")
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # what a wrong file makes of it is anything
        raise BadCheckpoint(f"{folder}: its tokenizer cannot be read: {first_line(error)}") from error


def _encoded(text: Text, tokenizer: Any, path: Path) -> list[int]:
    if isinstance(text, str):
        end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        return tokenizer(text, add_special_tokens=False)["input_ids"] + end
    try:
        whole = tokenizer.apply_chat_template(text, tokenize=False)
    except Exception as error:  # a template is a program, which raises anything
        said = f"{text!r:.80}: {first_line(error)}"
        raise BadCheckpoint(f"{path}: the tokenizer's chat template fails on {said}") from error
    return tokenizer(whole, add_special_tokens=False)["input_ids"]


def _paragraphs(path: Path) -> Iterator[str]:
    lines: list[str] = []
    for line in _lines(path):
        if line.strip():
            lines.append(line)
        elif lines:
            yield "".join(lines)
            lines = []
    if lines:
        yield "".join(lines)


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8") as file:
            yield from file
    except (OSError, UnicodeDecodeError) as error:
        raise BadCheckpoint(f"{path}: is no text in UTF-8 that can be read ({error})") from error


def _json_lines(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    column = None
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            row = parse_json(line, f"{path}, line {number},")
            if not isinstance(row, dict):
                raise BadCheckpoint(f"{path}, line {number}: is no object with {' or '.join(columns)}")
            column = column or _column(list(row), path, columns)
            yield row.get(column)


def _parquet(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise BadCheckpoint(f"{path}: parquet files are read with pyarrow, which is not installed") from error
    try:
        with parquet.ParquetFile(path) as file:
            column = _column(file.schema_arrow.names, path, columns)
            for batch in file.iter_batches(batch_size=1024, columns=[column]):
                yield from batch.column(0).to_pylist()
    except (ArrowException, OSError) as error:
        raise BadCheckpoint(f"{path}: {first_line(error)}") from error


def _column(names: list[str], path: Path, columns: Sequence[str]) -> str:
    for column in columns:
        if column in names:
            return column
    raise BadCheckpoint(f"{path}: has none of the columns {', '.join(columns)}; it has {', '.join(names) or 'none'}")


def _checked(value: Any, where: str) -> Text:
    if isinstance(value, str):
        return value.strip() and value
    if isinstance(value, list) and all(isinstance(part, dict) and {"role", "content"} <= part.keys() for part in value):
        return value
    raise BadCheckpoint(f"{where}: {value!r:.80} is neither a string nor chat messages")
