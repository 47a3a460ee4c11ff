"""GSM8K, DAPO-Math-17k and AIME 2024 from copies in their published forms: verl reads and scores them; what is wrong
with a copy is one line.
"""

from pathlib import Path

import pytest
from data_cases import GSM8K, gsm8k_copy, math_copy, math_row, read, verl_rows, verl_score, write_parquet
from naming import has_line_naming
from typer.testing import CliRunner

from ascend_quant.commands.app import app
from ascend_quant.datasets import DataError, prepare

ANSWERS = ["7", "1200", "-5"]
TRAIN = [math_row("One?", "34", "a1"), math_row("Two?", "-3", "b2"), math_row("Three?", "1007", "c3")]
TEST = [math_row("Four?", "204", 0), math_row("Five?", "25", 1)]


def error(source: Path, target: Path, name: str = "gsm8k") -> str:
    with pytest.raises(DataError) as caught:
        prepare(name, source, target)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_verl_reads_and_scores_gsm8k(tmp_path: Path):
    pytest.importorskip("verl", reason="verl is not installed")
    prepare("gsm8k", gsm8k_copy(tmp_path / "copy"), tmp_path / "data")
    rows = verl_rows(tmp_path / "data/gsm8k/train.parquet", tmp_path / "cache")
    assert [row["reward_model"]["ground_truth"] for row in rows] == ANSWERS
    for row, source in zip(rows, GSM8K, strict=True):
        (message,) = row["raw_prompt"]
        assert message["role"] == "user" and message["content"].startswith(source["question"])
        assert "####" in message["content"], "the reward looks for it"
        assert verl_score(row, source["answer"]) == 1.0
        assert verl_score(row, "It is\n#### 99") == 0.0
    assert [row["index"] for row in rows] == [0, 1, 2]


def test_all_parts_are_taken_in_order(tmp_path: Path):
    copy = tmp_path / "copy"
    write_parquet(copy / "main/train-00001-of-00002.parquet", GSM8K[1:])
    write_parquet(copy / "main/train-00000-of-00002.parquet", GSM8K[:1])
    write_parquet(copy / "main/test.parquet", GSM8K)
    prepare("gsm8k", copy, tmp_path)
    for split in ("train", "test"):
        assert [row["reward_model"]["ground_truth"] for row in read(tmp_path / f"gsm8k/{split}.parquet")] == ANSWERS


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([GSM8K[0], {"question": "?", "answer": "none"}], "row 1 … answer"),
        ([GSM8K[0], {"question": "?", "answer": "#### 1.2.3"}], "row 1 … answer"),
        ([GSM8K[0], {"question": None, "answer": "#### 1"}], "row 1 … question"),
        ([GSM8K[0], {"question": " ", "answer": "#### 1"}], "row 1 … question"),
        ([{"text": "a", "answer": "#### 1"}], "question"),
        ([{**GSM8K[0], "question": 5}], "question"),
        ([], "gsm8k"),
    ],
)
def test_a_row_without_question_or_answer_is_named(tmp_path: Path, rows: list[dict], said: str):
    """In another set, too."""
    assert has_line_naming(error(gsm8k_copy(tmp_path / "copy", train=rows), tmp_path), said)
    assert not (tmp_path / "gsm8k/train.parquet").exists()


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path):
    (gsm8k_copy(tmp_path / "copy") / "main/train-00000-of-00001.parquet").write_text("PAR")
    assert "train-00000-of-00001.parquet" in error(tmp_path / "copy", tmp_path)


def test_two_copies_are_refused_and_no_copy_is_told_how(tmp_path: Path):
    copy = gsm8k_copy(tmp_path / "copy")
    assert "openai/gsm8k" in error(copy / "socratic", tmp_path)
    gsm8k_copy(copy / "older")
    said = error(copy, tmp_path)
    assert str(copy / "main") in said and str(copy / "older") in said


@pytest.mark.parametrize("numbers", [[(1, 2)], [(0, 2), (1, 3)]])
def test_parts_that_make_no_set(tmp_path: Path, numbers: list[tuple[int, int]]):
    names = [f"train-{number:05d}-of-{total:05d}.parquet" for number, total in numbers]
    for name in names:
        write_parquet(tmp_path / "copy/main" / name, GSM8K)
    assert names[0] in error(tmp_path / "copy", tmp_path)


def test_no_folder_and_no_network_are_one_line(tmp_path: Path, monkeypatch):
    assert has_line_naming(error(tmp_path / "none", tmp_path), tmp_path / "none", "openai/gsm8k")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError) as caught:
        prepare("gsm8k", None, tmp_path)
    assert has_line_naming(str(caught.value), "openai/gsm8k", "--from FOLDER")
    assert "--repo-type dataset --local-dir FOLDER; then give --from FOLDER" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_verl_reads_and_scores_dapo_math_and_aime(tmp_path: Path):
    """Each problem once, in order; one with two answers is left out and told.

    Validation has a name of its own: verl reports its scores by source, and its default reward takes every name that
    begins with aime.
    """
    pytest.importorskip("verl", reason="verl is not installed")
    twice = [math_row("Six?", "3", "d4"), math_row("Six?", "4", "e5")]
    made = prepare("dapo-math-17k", math_copy(tmp_path / "copy", [*TRAIN, *TRAIN[::-1], *twice], TEST * 3), tmp_path)
    train, test = tmp_path / "dapo-math-17k/train.parquet", tmp_path / "aime-2024/test.parquet"
    assert {f"{train}: 3 rows", f"{test}: 2 rows"} <= set(made)
    assert [row["extra_info"]["id"] for row in read(train)] == ["a1", "b2", "c3"]
    assert [row["extra_info"]["index"] for row in read(train)] == [0, 1, 2]
    assert any(has_line_naming(note, "dapo-math-17k:", "1 problems", "different answers") for note in made)
    for file, source, name in ((train, TRAIN, "math_dapo"), (test, TEST, "aime_2024")):
        assert {row["data_source"] for row in read(file)} == {name}
        rows = verl_rows(file, tmp_path / "cache")
        assert [row["raw_prompt"] for row in rows] == [row["prompt"] for row in source]
        for row, of in zip(rows, source, strict=True):
            assert verl_score(row, f"So.\nAnswer: {of['reward_model']['ground_truth']}") == 1.0
            assert verl_score(row, "So.\nAnswer: 77") == -1.0


@pytest.mark.parametrize(
    "rows, named",
    [
        ([TRAIN[0], math_row("?", " ")], "row 1"),
        ([TRAIN[0], {**math_row("?", "1"), "prompt": TRAIN[0]["prompt"] * 2}], "row 1"),
        ([TRAIN[0], {**math_row("?", "1"), "reward_model": None}], "row 1"),
        ([{**TRAIN[0], "reward_model": [3]}], "reward_model"),
    ],
)
def test_problems_without_an_answer_or_prompt_are_named(tmp_path: Path, rows: list[dict], named: str):
    copy = math_copy(tmp_path / "copy", rows, TEST)
    assert has_line_naming(error(copy, tmp_path, "dapo-math-17k"), "dapo-math-17k.parquet", named)


def test_a_missing_set_is_named(tmp_path: Path):
    copy = math_copy(tmp_path / "other", TRAIN, TEST)
    (copy / "AIME-2024/data/aime-2024.parquet").unlink()
    assert has_line_naming(error(copy, tmp_path, "dapo-math-17k"), "aime-2024", "BytedTsinghua-SIA/AIME-2024")


def test_data_writes_files_and_says_how_many_rows(tmp_path: Path):
    source = gsm8k_copy(tmp_path / "downloaded")
    shown = CliRunner().invoke(app, ["data", "gsm8k", "--from", str(source), "--to", str(tmp_path / "made")])
    assert shown.exit_code == 0, shown.stderr
    file = tmp_path / "made" / "gsm8k" / "train.parquet"
    assert f"{file}: 3 rows" in shown.stdout and file.exists()


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["gsm9k"], "gsm9k", 2),
        (["addition", "--from", "/nowhere"], "/nowhere", 2),
        (["gsm8k", "--from", "/nowhere"], "/nowhere", 1),
        (["addition", "--to", "/dev/full"], "/dev/full", 1),
    ],
)
def test_what_is_wrong_with_data_is_said(arguments: list[str], said: str, code: int):
    shown = CliRunner().invoke(app, ["data", *arguments])
    assert shown.exit_code == code
    assert has_line_naming(shown.stderr, said) and "Traceback" not in shown.stderr
