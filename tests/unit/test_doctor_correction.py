"""The doctor of a recipe's importance weights: what is assumed is what refuses a recipe, what is measured comes in."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from doctor_facts import said, wanted, well
from test_recipe_files import error, write

from launch.doctor.checks.correction import kl_of, share
from launch.doctor.requirements import Wanted, wanted_here
from launch.errors import LaunchError
from launch.recipes import load
from launch.recipes.effective import Weights

LONG = {"level": "sequence"}, {"max_prompt_length": 16, "max_response_length": 10240}


def test_the_words_are_those_that_refuse_the_recipe(tmp_path: Path):
    what, fix = Weights("sequence", 2.0, 10240).loss()
    assert f"{what}. {fix}" in error(tmp_path, correction=LONG[0], rollout=LONG[1])
    ((level, line),) = said(share, well(), wanted(weights=Weights("sequence", 2.0, 10240)))
    assert (level, line) == ("warning", f"{what} (assumed) | {fix}")


@pytest.mark.parametrize(
    ("correction", "kl", "levels"),
    [
        (None, 1e-3, []),
        ({"level": "token"}, None, ["ok"]),
        ({"level": "token"}, 1e-3, ["ok", "ok"]),
        ({"level": "token"}, 1.0, ["ok", "warning"]),
        ({"level": "sequence"}, 1e-4, ["ok", "ok"]),
        ({"level": "sequence"}, 1e-2, ["ok", "warning"]),
    ],
)
def test_what_a_host_hears_of_a_recipe(tmp_path: Path, correction: dict | None, kl: float | None, levels: list[str]):
    """Sent as JSON; the recipe's responses have 32 tokens."""
    write(tmp_path, correction=correction)
    told = wanted_here(load("one", tmp_path), None, kl)
    heard = Wanted.of(json.loads(json.dumps(asdict(told))))
    assert heard == told
    assert [level for level, _ in said(share, well(), heard)] == levels


def test_one_host_says_it():
    assert said(share, well(), wanted(weights=Weights("sequence", 2.0, 10240), head=False)) == []


def test_the_kl_is_the_reports(tmp_path: Path):
    write(tmp_path)
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"scheme": load("one", tmp_path).rollout.scheme, "mismatch": {"k3_kl": 8.7e-4}}))
    assert kl_of(report, load("one", tmp_path)) == 8.7e-4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "report.json"),
        ("[1]", "no JSON object"),
        ('{"scheme": "int8"}', "no KL"),
        ('{"scheme": "int8", "mismatch": [1]}', "no KL"),
        ('{"scheme": "int8", "mismatch": {"k3_kl": -1.0}}', "no KL"),
        ('{"scheme": "int8", "mismatch": {"k3_kl": 1e999}}', "no KL"),
        ('{"scheme": "fp8", "mismatch": {"k3_kl": 1e-3}}', "is of fp8"),
    ],
)
def test_what_is_no_report_of_the_recipe_is_refused(tmp_path: Path, text: str | None, words: str):
    write(tmp_path)
    report = tmp_path / "report.json"
    if text is not None:
        report.write_text(text)
    with pytest.raises(LaunchError, match=words):
        kl_of(report, load("one", tmp_path))
