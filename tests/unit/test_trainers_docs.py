"""docs/trainers.md and its Chinese twin: the same programs, the same settings."""

import re

from launch import ROOT

PAGES = [(ROOT / "docs" / name).read_text() for name in ("trainers.md", "trainers.zh.md")]


def test_both_pages_have_the_same_programs_but_for_comments():
    english, chinese = (
        [re.sub(r" *#.*", "", block) for block in re.findall(r"```.*?```", text, re.S)] for text in PAGES
    )
    assert english == chinese and len(english) == 2


def test_both_pages_have_the_same_settings():
    prose = [re.sub(r"```.*?```", "", text, flags=re.S) for text in PAGES]
    english, chinese = ({words for words in re.findall(r"`([^`]+)`", text) if " .. " not in words} for text in prose)
    assert english ^ chinese <= {"lm_head"}
