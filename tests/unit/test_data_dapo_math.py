"""DAPO-Math-17k and AIME 2024 from copies in their published form: each problem once, read and scored by verl."""

from pathlib import Path

import pytest
from data_cases import math_copy, math_row, read, verl_rows, verl_score, write_lines
from naming import has_line_naming, line_naming

from launch.data import DataError, prepare

TRAIN = [math_row("One?", "34", "a1"), math_row("Two?", "-3", "b2"), math_row("Three?", "1007", "c3")]
TEST = [math_row("Four?", "204", 0), math_row("Five?", "25", 1)]


def files(folder: Path) -> tuple[Path, Path]:
    return folder / "dapo-math-17k/train.parquet", folder / "aime-2024/test.parquet"


def test_verl_reads_and_scores_them(tmp_path: Path):
    pytest.importorskip("verl", reason="verl is not installed")
    prepare("dapo-math-17k", math_copy(tmp_path / "copy", TRAIN * 2, TEST * 3), tmp_path)
    for file, source in zip(files(tmp_path), (TRAIN, TEST), strict=True):
        rows = verl_rows(file, tmp_path / "cache")
        assert [row["raw_prompt"] for row in rows] == [row["prompt"] for row in source]
        for row, of in zip(rows, source, strict=True):
            assert verl_score(row, f"So.\nAnswer: {of['reward_model']['ground_truth']}") == 1.0
            assert verl_score(row, "So.\nAnswer: 77") == -1.0


def test_each_problem_stands_once_in_order(tmp_path: Path):
    made = prepare("dapo-math-17k", math_copy(tmp_path / "copy", TRAIN + TRAIN[::-1] * 4, TEST), tmp_path)
    train, test = files(tmp_path)
    assert [row["extra_info"]["id"] for row in read(train)] == ["a1", "b2", "c3"]
    assert [row["extra_info"]["index"] for row in read(train)] == [0, 1, 2]
    assert made.rows == {train: 3, test: 2}
    assert "dapo-math-17k: 15 rows were read, 3 different problems" in made.notes


def test_validation_has_a_name_of_its_own(tmp_path: Path):
    """verl reports its scores by source; its default reward takes every name that begins with aime."""
    prepare("dapo-math-17k", math_copy(tmp_path / "copy", TRAIN, TEST), tmp_path)
    assert [{row["data_source"] for row in read(file)} for file in files(tmp_path)] == [{"math_dapo"}, {"aime_2024"}]


def test_problems_with_two_answers_are_left_out_and_told(tmp_path: Path):
    made = prepare("dapo-math-17k", math_copy(tmp_path / "copy", [*TRAIN, math_row("Two?", "3", "d4")], TEST), tmp_path)
    assert [row["extra_info"]["id"] for row in read(files(tmp_path)[0])] == ["a1", "c3"]
    assert any(has_line_naming(note, "dapo-math-17k:", "1 problems", "different answers") for note in made.notes)


@pytest.mark.parametrize(
    "bad",
    [
        math_row("?", " "),
        {**math_row("?", "1"), "prompt": TRAIN[0]["prompt"] * 2},
        {**math_row("?", "1"), "reward_model": None},
    ],
)
def test_rows_without_an_answer_or_prompt_are_named(tmp_path: Path, bad: dict):
    copy = math_copy(tmp_path / "copy", TRAIN, TEST)
    (copy / "DAPO-Math-17k/data/dapo-math-17k.parquet").unlink()
    write_lines(copy / "DAPO-Math-17k/data/dapo-math-17k.jsonl", [TRAIN[0], bad])
    with pytest.raises(DataError, match=line_naming("dapo-math-17k:", "1 rows", "rows 1")):
        prepare("dapo-math-17k", copy, tmp_path)


@pytest.mark.parametrize(("column", "value"), [("prompt", "x"), ("reward_model", [3])])
def test_a_value_of_another_type_is_named(tmp_path: Path, column: str, value):
    copy = math_copy(tmp_path / "copy", [{**TRAIN[0], column: value}], TEST)
    with pytest.raises(DataError, match=line_naming("dapo-math-17k.parquet", column)):
        prepare("dapo-math-17k", copy, tmp_path)


def test_the_set_that_is_missing_is_named(tmp_path: Path):
    copy = math_copy(tmp_path / "copy", TRAIN, TEST)
    (copy / "AIME-2024/data/aime-2024.parquet").unlink()
    with pytest.raises(DataError, match=r"has no aime-2024.* of BytedTsinghua-SIA/AIME-2024; .*hf download"):
        prepare("dapo-math-17k", copy, tmp_path)
