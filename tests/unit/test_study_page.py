"""The study's page says what its last result says."""

import json

import pytest

from benchmarks import study_page
from launch.study.grid import ARMS
from launch.study.report import rows


@pytest.mark.parametrize("page", study_page.PAGES, ids=lambda page: page.name)
def test_the_table_is_that_of_the_result(page):
    text = page.read_text()
    assert study_page.into(text) == text
    for row in rows(study_page.records()):
        assert f"| {row['rate']} | {row['arm']} | {row['seeds']} |" in text
    assert all(f"`{arm}`" in text for arm in ARMS)


def test_the_result_has_no_cell_twice():
    cells = [(cell["arm"], cell["rate"], cell["seed"]) for cell in study_page.records()]
    assert len(set(cells)) == len(cells)
    assert json.loads(study_page.result().read_text())["schema"] == 1
