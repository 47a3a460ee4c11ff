"""GSM8K: grade-school problems, whose written solutions end in `#### ANSWER`. 7473 rows to train, 1319 to test.

verl's reward looks for `#### ANSWER` in what the model writes, so the prompt asks for it.
"""

import re
from pathlib import Path

from launch.data.files import (
    DataError,
    Progress,
    Published,
    Row,
    Summary,
    files_of,
    folder_of,
    refuse_without,
    rows_of,
    verl_row,
    write,
)

PUBLISHED = Published("openai/gsm8k", ("main/*",))
OTHER_CONFIGURATION = "socratic"  # the same problems, solved by questions
ANSWERED = " ** "  # stands there between each question and its answer
SPLITS = ("train", "test")
COLUMNS = {"question": str, "answer": str}
ASK = 'Work it out step by step, then give the final answer as a number after "#### ".'
NUMBER = re.compile(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")


def prepare(source: Path | None, target: Path, progress: Progress) -> Summary:
    """Write gsm8k/train.parquet and gsm8k/test.parquet."""
    folder, made = folder_of(PUBLISHED, source), Summary()
    for split in SPLITS:
        files = files_of(PUBLISHED, folder, split, without=OTHER_CONFIGURATION)
        rows, file = split_rows(split, files, progress), target / "gsm8k" / f"{split}.parquet"
        write(file, rows)
        made.rows[file] = len(rows)
    return made


def split_rows(split: str, files: list[Path], progress: Progress) -> list[Row]:
    """The rows of one split, for verl.

    Raises:
        DataError: there are rows without a question or an answer, or the solutions are the other configuration's.
    """
    rows, unasked, unanswered = [], [], []
    for index, row in enumerate(rows_of(files, COLUMNS, progress)):
        question, solution = row["question"], row["answer"]
        answer = final_answer(solution)
        if not (question or "").strip():
            unasked.append(index)
        elif answer is None:
            unanswered.append(index)
        else:
            extra = {"split": split, "index": index, "question": question, "answer": solution}
            rows.append(verl_row(PUBLISHED.repository, f"{question} {ASK}", answer, extra))
    refuse_without("question", f"gsm8k, {split}", unasked, "a text")
    refuse_without("answer", f"gsm8k, {split}", unanswered, "a number after ####")
    if rows and all(ANSWERED in row["extra_info"]["answer"] for row in rows):
        raise DataError(f"{files[0]}: has the solutions of {OTHER_CONFIGURATION}: give --from a copy of main")
    return rows


def final_answer(solution: str | None) -> str | None:
    """The number behind the last ####, without the commas between thousands; None if there is none."""
    _, mark, answer = (solution or "").rpartition("####")
    answer = answer.strip().replace(",", "")
    return answer if mark and NUMBER.fullmatch(answer) else None
