"""Checks of data files before a run: columns, their types, nulls, and enough rows.

verl reads them minutes after the start. With data.filter_overlong_prompts it drops prompts that it cannot read as if
they were too long, so the run continues with fewer, or ends with an empty data loader.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow

PROMPT, REWARD = "prompt", "reward_model"
MESSAGE = {"role", "content"}
ANSWER = "ground_truth"


def lacking(
    files: Iterable[str], columns: Sequence[str], prompt: str = PROMPT, least: Mapping[str, int] | None = None
) -> list[str]:
    """Return the problems with the rows of these parquet files, one line each; missing and other files are skipped.

    Args:
        columns: columns that each file must have.
        prompt: the column with the messages.
        least: minimum number of rows of a file, if that is more than one.
    """
    needed = least or {}
    parquet = [file for file in files if file.endswith(".parquet")]
    return [line for file in parquet for line in _lacking(file, columns, prompt, needed.get(file, 1))]


def _lacking(file: str, columns: Sequence[str], prompt: str, least: int) -> list[str]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        return ["pyarrow is not installed here: is this the Python of the stack? (`python` in the inventory)"]
    try:
        with ParquetFile(file) as opened:
            there = opened.schema_arrow
            if missing := [name for name in columns if name not in there.names]:
                has = f"it has {', '.join(there.names)}"[:200]
                return [f"{file} has no column {', '.join(missing)} ({has}): ./run.sh data makes such files"]
            if columns and not (rows := opened.metadata.num_rows):
                return [f"{file} has no rows: create it again"]
            if columns and rows < least:
                asking = "data.train_batch_size, trainer.total_training_steps and trainer.total_epochs require them"
                return [f"{file} has {rows} rows, but {least} are needed: {asking}; add rows, or change these"]
            if wrong := [line for name in columns for line in _type(name, there.field(name).type, prompt)]:
                return [f"{file}: {line}" for line in wrong]
            return [f"{file}: {line}" for line in _nulls(opened.iter_batches(columns=list(columns)), columns, prompt)]
    except FileNotFoundError:
        return []
    except (OSError, ArrowException) as error:
        return [f"{file} is not a readable parquet file ({' '.join(str(error).split())[:200]}): copy it again"]


def _type(name: str, found: "pyarrow.DataType", prompt: str) -> Iterator[str]:
    """Yield the problems with a column's type."""
    from pyarrow import types

    if types.is_null(found):
        yield f"{name} is null in every row"
    elif name == prompt:
        message = found.value_type if _is_list(found) else None
        if message is None or not types.is_struct(message) or not set(message.names) >= MESSAGE:
            yield (
                f'{name} is {found!s:.100}: verl needs a list of messages, such as [{{"role": "user", "content": '
                '".."}]'
            )
            return
        role, content = message.field("role").type, message.field("content").type
        if not _is_text(role):
            yield f"{name} is a list of messages whose role is {role}: verl needs text, such as user"
        if not (_is_text(content) or _is_list(content)):
            yield f"{name} is a list of messages whose content is {content!s:.100}: verl needs text, or a list of parts"
    elif name == REWARD and not (types.is_struct(found) and ANSWER in found.names):
        yield f'{name} is {found!s:.100}: verl needs a mapping, such as {{"style": "rule", "{ANSWER}": ".."}}'


def _is_list(found: "pyarrow.DataType") -> bool:
    from pyarrow import types

    return types.is_list(found) or types.is_large_list(found)


def _is_text(found: "pyarrow.DataType") -> bool:
    from pyarrow import types

    value = found.value_type if types.is_dictionary(found) else found
    return types.is_string(value) or types.is_large_string(value)


def _nulls(batches: "Iterable[pyarrow.RecordBatch]", columns: Sequence[str], prompt: str) -> Iterator[str]:
    """Yield a line for each column with empty rows: the first such row, counted from 0, and their number."""
    first, count, before = dict[str, int](), dict.fromkeys(columns, 0), 0
    for batch in batches:
        for name in columns:
            if empty := _empty(batch.column(name), name, prompt):
                first.setdefault(name, before + empty[0])
                count[name] += len(empty)
        before += batch.num_rows
    for name, row in first.items():
        what = f"{name}, or its {ANSWER}," if name == REWARD else name
        yield f"{what} is null or empty in {count[name]} of {before} rows, first in row {row}: remove them"


def _empty(column: "pyarrow.Array", name: str, prompt: str) -> list[int]:
    """Return the rows with null, no answer, no message, or a message without role; tool calls need no content."""
    from pyarrow import compute

    rows = set(compute.indices_nonzero(column.is_null()).to_pylist())
    if name == REWARD:
        rows |= set(compute.indices_nonzero(compute.struct_field(column, ANSWER).is_null()).to_pylist())
    if name == prompt:
        rows |= set(compute.indices_nonzero(compute.equal(compute.list_value_length(column), 0)).to_pylist())
        inner, owners = compute.list_flatten(column), compute.list_parent_indices(column)
        needed = MESSAGE - {"content"} if "tool_calls" in inner.type.names else MESSAGE
        for part in needed:
            rows |= set(owners.filter(compute.struct_field(inner, part).is_null()).to_pylist())
    return sorted(rows)
