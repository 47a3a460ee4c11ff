"""docs/doctor.md and its Chinese twin: a row for each check."""

import re

import pytest

from launch import ROOT
from launch.doctor.examination import BEFORE_RAY, CHECKS
from launch.doctor.hosts import TOGETHER

PAGES = {name: (ROOT / "docs" / name).read_text() for name in ("doctor.md", "doctor.zh.md")}


@pytest.mark.parametrize("page", PAGES)
def test_every_check_has_its_row_in_the_order_of_the_report(page: str):
    rows = re.findall(r"^\| `([\w.]+)`( \*)? \| [^|]+ \| [^|]+ \|$", PAGES[page], re.MULTILINE)
    assert [name for name, _ in rows] == [*CHECKS, *TOGETHER]
    assert {name for name, mark in rows if mark} == set(BEFORE_RAY)
