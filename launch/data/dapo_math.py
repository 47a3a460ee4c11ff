"""DAPO-Math-17k to train on, AIME 2024 to validate with: competition problems whose answers are numbers.

Both are published with many copies of each row (100 and 32); here each problem stands once, in the order of its first
copy, and the samples of a validation prompt are the recipe's `val_kwargs.n`. The prompts ask for `Answer: ..`, which
is what verl's reward looks for.
"""

from pathlib import Path
from typing import Any

from launch.data.files import (
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

TRAIN = Published("BytedTsinghua-SIA/DAPO-Math-17k", ("data/*.parquet",))
TEST = Published("BytedTsinghua-SIA/AIME-2024", ("data/*.parquet",))
COLUMNS = {"prompt": list, "reward_model": dict, "extra_info": dict}


def prepare(source: Path | None, target: Path, progress: Progress) -> Summary:
    """Write dapo-math-17k/train.parquet and aime-2024/test.parquet; a copy's folder holds both sets."""
    made = Summary()
    for published, prefix, data_source, file in (
        (TRAIN, "dapo-math-17k", "math_dapo", target / "dapo-math-17k" / "train.parquet"),
        (TEST, "aime-2024", "aime_2024", target / "aime-2024" / "test.parquet"),
    ):
        files = files_of(published, folder_of(published, source), prefix)
        rows, notes = problems(prefix, data_source, files, progress)
        write(file, rows)
        made.rows[file] = len(rows)
        made.notes += notes
    return made


def problems(name: str, data_source: str, files: list[Path], progress: Progress) -> tuple[list[Row], list[str]]:
    """Each problem once, for verl; and what was left out."""
    answers: dict[str, tuple[str, str]] = {}  # by the prompt: the answer, and the source's own id
    unanswered, differing, read = [], set(), 0
    for read, row in enumerate(rows_of(files, COLUMNS, progress), start=1):
        prompt, answer = prompt_of(row), answer_of(row)
        if prompt is None or answer is None:
            unanswered.append(read - 1)
            continue
        first, _ = answers.setdefault(prompt, (answer, str((row["extra_info"] or {}).get("index"))))
        if first != answer:
            differing.add(prompt)
    refuse_without("answer", name, unanswered, "one message in prompt, and reward_model.ground_truth")
    kept = [(prompt, *answers[prompt]) for prompt in answers if prompt not in differing]
    rows = [
        verl_row(data_source, prompt, answer, {"split": name, "index": index, "id": own})
        for index, (prompt, answer, own) in enumerate(kept)
    ]
    notes = [f"{name}: {read} rows were read, {len(answers)} different problems"]
    if differing:
        notes.append(f"{name}: left out {len(differing)} problems whose copies have different answers")
    return rows, notes


def prompt_of(row: dict[str, Any]) -> str | None:
    """What the one message of the prompt says; None where that is no text, or there is another number of them."""
    messages = row["prompt"] or []
    content = messages[0].get("content") if len(messages) == 1 and isinstance(messages[0], dict) else None
    return content if isinstance(content, str) and content.strip() else None


def answer_of(row: dict[str, Any]) -> str | None:
    """The right answer; None where there is none, or no text and no whole number."""
    answer = (row["reward_model"] or {}).get("ground_truth")
    is_one = isinstance(answer, str | int) and not isinstance(answer, bool)
    return str(answer).strip() or None if is_one else None
