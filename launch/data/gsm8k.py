"""GSM8K: grade-school problems, whose written solutions end in `#### ANSWER`. 7473 rows to train, 1319 to test.

verl's reward looks for `#### ANSWER` in what the model writes, so the prompt asks for it.
"""

import re
from pathlib import Path

from launch.data.copies import Published, files_of, folder_of
from launch.data.summary import Progress, Summary
from launch.data.tables import Row, refuse_without_answer, rows_of, verl_row, write

PUBLISHED = Published("openai/gsm8k", ("main/*",))
OTHER_CONFIGURATION = "socratic"  # the same problems, solved by questions
SPLITS = ("train", "test")
ASK = 'Work it out step by step, then give the final answer as a number after "#### ".'
NUMBER = re.compile(r"-?[\d.]*\d[\d.]*")


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
    """The rows of one split, for verl."""
    rows, unanswered = [], []
    for index, row in enumerate(rows_of(files, ("question", "answer"), progress)):
        answer = final_answer(row["answer"])
        if answer is None:
            unanswered.append(index)
            continue
        extra = {"split": split, "index": index, "question": row["question"], "answer": row["answer"]}
        rows.append(verl_row(PUBLISHED.repository, f"{row['question']} {ASK}", answer, extra))
    refuse_without_answer(f"gsm8k, {split}", unanswered, "a number after ####")
    return rows


def final_answer(solution: str | None) -> str | None:
    """The number behind the last ####, without the commas between thousands; None if there is none."""
    _, mark, answer = (solution or "").rpartition("####")
    answer = answer.strip().replace(",", "")
    return answer if mark and NUMBER.fullmatch(answer) else None
