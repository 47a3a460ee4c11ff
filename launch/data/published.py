"""The data sets of the hub, for verl: each prompt asks for the answer where verl's reward looks for it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints

from launch.data.files import Progress, Published, Row, files_of, folder_of, rows_of, write

GSM8K = Published("openai/gsm8k", ("main/*",))
ASK = 'Work it out step by step, then give the final answer as a number after "#### ".'
NUMBER = r"####\s*(-?(?:[0-9][0-9,]*\.?[0-9]*|\.[0-9]+))\s*$"
DAPO = Published("BytedTsinghua-SIA/DAPO-Math-17k", ("data/*.parquet",))
AIME = Published("BytedTsinghua-SIA/AIME-2024", ("data/*.parquet",))

Text = Annotated[str, StringConstraints(pattern=r"\S")]


class Solution(BaseModel):
    """A row of GSM8K, a grade-school problem; the number behind the last #### of `answer` is the result."""

    question: Text
    answer: Annotated[str, Field(pattern=NUMBER)]


class Message(BaseModel):
    """The one message of a prompt."""

    content: Text


class Reward(BaseModel):
    """The right answer."""

    ground_truth: Text | int


class Problem(BaseModel):
    """A row of DAPO-Math-17k or of AIME-2024, whose prompt asks for `Answer: ..`."""

    prompt: tuple[Message]
    reward_model: Reward
    extra_info: dict[str, Any] | None


def gsm8k(source: Path | None, target: Path, progress: Progress) -> list[str]:
    """Write gsm8k/train.parquet and gsm8k/test.parquet: 7473 rows and 1319.

    The other configuration, socratic, has the same problems solved by questions, and is left out.
    """
    folder, made = folder_of(GSM8K, source), []
    for split in ("train", "test"):
        rows = []
        for index, one in enumerate(rows_of(files_of(GSM8K, folder, split, "socratic"), Solution, progress)):
            answer = re.search(NUMBER, one.answer)[1].replace(",", "")
            extra = {"split": split, "index": index, "question": one.question, "answer": one.answer}
            rows.append(verl_row(GSM8K.repository, f"{one.question} {ASK}", answer, extra))
        made.append(write(target / "gsm8k" / f"{split}.parquet", rows))
    return made


def dapo_math(source: Path | None, target: Path, progress: Progress) -> list[str]:
    """Write dapo-math-17k/train.parquet to train on and aime-2024/test.parquet to validate with; a copy has both sets.

    They are published with many copies of each row (100 and 32); here each problem stands once, in the order of its
    first copy, and the samples of a validation prompt are the recipe's `val_kwargs.n`.
    """
    made = []
    for published, name, data_source, split in (
        (DAPO, "dapo-math-17k", "math_dapo", "train"),
        (AIME, "aime-2024", "aime_2024", "test"),
    ):
        found = rows_of(files_of(published, folder_of(published, source), name), Problem, progress)
        rows, notes = once(name, data_source, found)
        made += [write(target / name / f"{split}.parquet", rows), *notes]
    return made


def once(name: str, data_source: str, problems: Iterator[Problem]) -> tuple[list[Row], list[str]]:
    """The rows for verl, one a problem, and notes on what was left out: problems whose copies differ in the answer."""
    answers: dict[str, tuple[str, str]] = {}  # by the prompt: the answer, and the source's own id
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
    notes = [f"{name}: {read} rows were read, {len(answers)} different problems"]
    if differing:
        notes.append(f"{name}: left out {len(differing)} problems whose copies have different answers")
    return rows, notes


def verl_row(data_source: str, prompt: str, answer: str, extra: Row) -> Row:
    """One row in the columns of verl's data set."""
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": prompt}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": extra,
    }
