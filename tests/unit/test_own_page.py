"""docs/models.md as a reader follows it: its files, its commands, and a dry run in which nothing stands in the way."""

import re
import runpy
from pathlib import Path

import pytest
from command_cases import commands
from typer.testing import CliRunner

from ascend_quant.demo.task import build_model, save_tokenizer
from launch import ROOT
from launch.cluster import transport
from launch.commands import app
from launch.recipes import load

PAGE = (ROOT / "docs/models.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the page has a reader write, and the model that its data command makes, untaught."""
    make_data, reward = blocks("python")
    files = {"make_data.py": make_data, "my_reward.py": reward, "own.yaml": blocks("yaml")[0]}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("make_data.py")
    build_model("qwen2", seed=0).save_pretrained("data/addition/start")
    save_tokenizer(Path("data/addition/start"))
    return tmp_path


def test_nothing_stands_in_the_way_of_a_reader_s_own_run(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The verl of this environment and a real node process are asked."""
    monkeypatch.setattr(transport, "ASK_SECONDS", 120)
    (dry_run,) = [words for words in commands(PAGE) if "--dry-run" in words]
    shown = CliRunner().invoke(app, dry_run[1:])
    assert shown.exit_code == 0, shown.stdout[-2000:] + shown.stderr
    for file in ("train.parquet", "test.parquet"):
        assert str(folder / file) in shown.stdout
    assert "reward.custom_reward_function.path=my_reward.py" in shown.stdout


def test_a_reader_s_run_takes_all_its_steps_validates_and_saves_the_last(folder: Path):
    """By the recipe of the page and the rows of its file: verl drops what is left of a batch."""
    from pyarrow.parquet import read_metadata

    verl = load("own.yaml").verl
    data, trainer = verl["data"], verl["trainer"]
    steps = read_metadata("train.parquet").num_rows // data["train_batch_size"] * trainer["total_epochs"]
    assert trainer["total_training_steps"] is None and data["shuffle"]
    assert 0 < trainer["test_freq"] < steps and steps % trainer["test_freq"] == steps % trainer["save_freq"] == 0


def test_the_rows_to_train_and_to_validate_on_are_alike(folder: Path):
    from pyarrow.parquet import read_table

    for file in ("train.parquet", "test.parquet"):
        first = [row["prompt"][0]["content"][0] for row in read_table(file).to_pylist()]
        assert len(set(first)) > 5 and first != sorted(first)


def test_the_reward_scores_the_data(folder: Path):
    from pyarrow.parquet import read_table

    rows = [row for file in ("train.parquet", "test.parquet") for row in read_table(file).to_pylist()]
    score = runpy.run_path("my_reward.py")["compute_score"]
    assert len(rows) == 100
    for row in rows:
        a, b = re.findall(r"\d+", row["prompt"][0]["content"])
        given = {"data_source": row["data_source"], "ground_truth": row["reward_model"]["ground_truth"]}
        assert score(solution_str=f" {int(a) + int(b)}\n", extra_info=None, **given) == 1.0
        assert score(solution_str=f"{int(a) + int(b) + 1}", extra_info=None, **given) == 0.0
