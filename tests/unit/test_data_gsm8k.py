"""GSM8K from copies in its published forms: verl reads and scores it; what is wrong with a copy is one line."""

from pathlib import Path

import pytest
from data_cases import GSM8K, gsm8k_copy, read, verl_rows, verl_score, write_lines, write_parquet

from launch.data import DataError, prepare

ANSWERS = ["7", "1200", "-5"]


def error(source: Path, target: Path) -> str:
    with pytest.raises(DataError) as caught:
        prepare("gsm8k", source, target)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_verl_reads_and_scores_it(tmp_path: Path):
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


def test_rows_and_files_are_told(tmp_path: Path):
    seen = []
    made = prepare("gsm8k", gsm8k_copy(tmp_path / "copy"), tmp_path / "data", lambda *one: seen.append(one))
    files = [tmp_path / "data/gsm8k/train.parquet", tmp_path / "data/gsm8k/test.parquet"]
    assert made.rows == dict(zip(files, (3, 1), strict=True)) and not made.notes
    assert made.lines() == [f"{files[0]}: 3 rows", f"{files[1]}: 1 rows"]
    assert seen[0] == ("reading train-00000-of-00001.parquet", 3, 3)
    assert {row["extra_info"]["split"] for row in read(files[1])} == {"test"}


def test_the_same_source_gives_the_same_bytes(tmp_path: Path):
    source = gsm8k_copy(tmp_path / "copy")
    for folder in ("one", "two"):
        prepare("gsm8k", source, tmp_path / folder)
    one, two = ((tmp_path / folder / "gsm8k/train.parquet").read_bytes() for folder in ("one", "two"))
    assert one == two


@pytest.mark.parametrize("where", ["", "main"])
def test_json_lines_and_shards_are_taken_too(tmp_path: Path, where: str):
    copy = tmp_path / "copy"
    write_lines(copy / where / "train.jsonl", GSM8K)
    write_parquet(copy / where / "test-00000-of-00002.parquet", GSM8K[:1])
    write_parquet(copy / where / "test-00001-of-00002.parquet", GSM8K[1:])
    prepare("gsm8k", copy, tmp_path)
    for split in ("train", "test"):
        assert [row["reward_model"]["ground_truth"] for row in read(tmp_path / f"gsm8k/{split}.parquet")] == ANSWERS


def test_rows_without_an_answer_are_named(tmp_path: Path):
    rows = [GSM8K[0], {"question": "?", "answer": "none"}, GSM8K[1], {"question": "?", "answer": "#### a lot"}]
    message = error(gsm8k_copy(tmp_path / "copy", train=rows), tmp_path)
    assert message.startswith("gsm8k, train: 2 rows have no answer (a number after ####): rows 1, 3.")
    assert not (tmp_path / "gsm8k/train.parquet").exists()


@pytest.mark.parametrize(
    "files, said",
    [
        ({}, "has no train*.parquet or .jsonl of openai/gsm8k; where there is a network: hf download"),
        ({"train.jsonl": '{"text": "a", "answer": "#### 1"}'}, "has no column question; its columns are answer, text"),
        ({"train.jsonl": '{"question": '}, "line 1 is no JSON"),
        ({"train.jsonl": "[1]"}, "line 1 is no JSON object"),
        ({"train.parquet": "PAR"}, "is no parquet file"),
        ({"train.jsonl": ""}, "there would be no rows in it"),
    ],
)
def test_a_wrong_copy_is_one_line(tmp_path: Path, files: dict[str, str], said: str):
    copy = tmp_path / "copy"
    copy.mkdir()
    for name, text in files.items():
        (copy / name).write_text(text)
    assert said in error(copy, tmp_path)


def test_no_folder_and_no_network_are_one_line(tmp_path: Path, monkeypatch):
    assert "is no folder; where there is a network" in error(tmp_path / "none", tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError) as caught:
        prepare("gsm8k", None, tmp_path)
    assert str(caught.value).startswith("openai/gsm8k cannot be had from the hub (")
    assert "--repo-type dataset --local-dir FOLDER; then give --from FOLDER" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_an_unknown_name_is_told_the_valid_ones(tmp_path: Path):
    with pytest.raises(DataError, match="no data set 'gsm9k'; there are: gsm8k, dapo-math-17k, addition"):
        prepare("gsm9k", None, tmp_path)
