"""GSM8K, DAPO-Math-17k and AIME-2024, read from a folder as created by `hf download`, or downloaded from the hub.

Each prompt asks for the answer in the form that verl's reward expects. The columns are those of verl's RLHFDataset, the
data sources those of verl's default reward (0.9.1 and older).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from ascend_quant.datasets import DataError
from ascend_quant.datasets.parquet import Row, write

GSM8K, DAPO, AIME = "openai/gsm8k", "BytedTsinghua-SIA/DAPO-Math-17k", "BytedTsinghua-SIA/AIME-2024"
ASK = 'Work it out step by step, then give the final answer as a number after "#### ".'
NUMBER = r"####\s*(-?(?:[0-9][0-9,]*\.?[0-9]*|\.[0-9]+))\s*$"

RowModel = TypeVar("RowModel", bound=BaseModel)
Text = Annotated[str, StringConstraints(pattern=r"\S")]


class Solution(BaseModel):
    """A row of GSM8K, a grade-school problem; the result is the number after the last #### of `answer`."""

    question: Text
    answer: Annotated[str, Field(pattern=NUMBER)]


class Message(BaseModel):
    """A message of a prompt."""

    content: Text


class Reward(BaseModel):
    """The ground truth of a problem: the right answer."""

    ground_truth: Text | int


class Problem(BaseModel):
    """A row of DAPO-Math-17k or of AIME-2024, whose prompt asks for `Answer: ..`."""

    prompt: tuple[Message]
    reward_model: Reward
    extra_info: dict[str, Any] | None


def gsm8k(source: Path | None, target: Path) -> list[str]:
    """Write gsm8k/train.parquet and gsm8k/test.parquet, with 7473 and 1319 rows.

    The other configuration, socratic, has the same problems with solutions as questions, and is not used.
    """
    made = []
    for split in ("train", "test"):
        rows = []
        for index, one in enumerate(rows_of(files_of(GSM8K, source, "main", split), Solution)):
            answer = re.search(NUMBER, one.answer)[1].replace(",", "")
            extra = {"split": split, "index": index, "question": one.question, "answer": one.answer}
            rows.append(verl_row(GSM8K, f"{one.question} {ASK}", answer, extra))
        made.append(write(target / "gsm8k" / f"{split}.parquet", rows))
    return made


def dapo_math(source: Path | None, target: Path) -> list[str]:
    """Write dapo-math-17k/train.parquet for training and aime-2024/test.parquet for validation; a copy has both sets.

    They are published with many copies of each row (100 and 32). Here each problem is written once, in the order of the
    first copies, and the recipe's `val_kwargs.n` sets the samples per validation prompt.
    """
    made = []
    for repository, name, data_source, split in (
        (DAPO, "dapo-math-17k", "math_dapo", "train"),
        (AIME, "aime-2024", "aime_2024", "test"),
    ):
        rows, notes = once(name, data_source, rows_of(files_of(repository, source, "data", name), Problem))
        made += [write(target / name / f"{split}.parquet", rows), *notes]
    return made


def once(name: str, data_source: str, problems: Iterator[Problem]) -> tuple[list[Row], list[str]]:
    """Return verl's rows, one per problem, and notes on skipped problems, whose copies differ in the answer."""
    answers: dict[str, tuple[str, str]] = {}  # by prompt: the answer, and the source's id
    differing, read = set(), 0
    for one in problems:
        read += 1
        prompt, answer = one.prompt[0].content, str(one.reward_model.ground_truth).strip()
        first, _ = answers.setdefault(prompt, (answer, str((one.extra_info or {}).get("index"))))
        if first != answer:
            differing.add(prompt)
    kept = [(prompt, *found) for prompt, found in answers.items() if prompt not in differing]
    rows = [
        verl_row(data_source, prompt, answer, {"split": name, "index": index, "id": own})
        for index, (prompt, answer, own) in enumerate(kept)
    ]
    notes = [f"{name}: {read} rows were read, with {len(answers)} different problems"]
    if differing:
        notes.append(f"{name}: left out {len(differing)} problems whose copies have different answers")
    return rows, notes


def verl_row(data_source: str, prompt: str, answer: str, extra: Row) -> Row:
    """Return a row with the columns of verl's data sets."""
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": prompt}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": extra,
    }


def files_of(repository: str, source: Path | None, inside: str, name: str) -> list[Path]:
    """Return the file NAME.parquet of a set, or all of its parts, NAME-00000-of-00002.parquet and so on, in order.

    Args:
        source: a folder that contains one copy, at any depth; None to download it from the hub, unless it is cached.
        inside: folder of the files in the repository.

    Raises:
        DataError: there is no copy, there are several, or a part is missing.
    """
    folder = _downloaded(repository, inside) if source is None else source
    found = sorted(folder.rglob(f"{inside}/{name}*.parquet"))
    parts = [f"{name}-{number:05d}-of-{len(found):05d}.parquet" for number in range(len(found))]
    if not found or [file.name for file in found] not in ([f"{name}.parquet"], parts):
        shown = ", ".join(map(str, found[:5])) or f"no {inside}/{name}*.parquet in {folder}"
        raise DataError(f"{shown}: expected exactly one complete copy of {repository}; {_how(repository)}")
    return found


def _downloaded(repository: str, inside: str) -> Path:
    from httpx import HTTPError
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, repo_type="dataset", allow_patterns=[f"{inside}/*.parquet"]))
    except (HTTPError, OSError) as error:
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"downloading {repository} from the hub failed ({why}); {_how(repository)}") from error


def _how(repository: str) -> str:
    return (
        f"where there is a network: hf download {repository} --repo-type dataset --local-dir FOLDER; then "
        "give --from FOLDER"
    )


def rows_of(files: list[Path], model: type[RowModel]) -> Iterator[RowModel]:
    """Yield the rows of all files in order, with only the columns of the row class.

    Raises:
        DataError: a file cannot be read, or a row does not match the row class.
    """
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    wrong = "is it another data set? If not, copy it again"
    for file in files:
        done = 0
        try:
            for batch in ParquetFile(file).iter_batches(columns=list(model.model_fields)):
                for row in batch.to_pylist():
                    yield model.model_validate(row)
                    done += 1
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise DataError(f"{file}: row {done}, {place}: {first['msg']}: {wrong}") from error
        except (ArrowException, OSError) as error:
            why = (str(error) or type(error).__name__).splitlines()[0][:200]
            raise DataError(f"{file}: cannot be read ({why}): {wrong}") from error
