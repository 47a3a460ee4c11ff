"""The two READMEs say the same: code, tables' figures and links are equal, headings match one to one."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENGLISH, CHINESE = ((ROOT / name).read_text() for name in ("README.md", "README.zh.md"))


def blocks(text: str) -> list[str]:
    return re.findall(r"```\w+\n(.*?)```", text, re.DOTALL)


def test_code_is_the_same():
    assert blocks(ENGLISH) == blocks(CHINESE)


def test_headings_match_one_to_one():
    english, chinese = ([len(marks) for marks in re.findall(r"^(#+) ", text, re.M)] for text in (ENGLISH, CHINESE))
    assert english == chinese


def test_tables_have_the_same_figures():
    def figures(text: str) -> list[list[str]]:
        return [re.findall(r"\d+(?:\.\d+)*", line) for line in text.splitlines() if line.startswith("|")]

    assert figures(ENGLISH) == figures(CHINESE)


def test_linked_files_exist():
    for text in (ENGLISH, CHINESE):
        for target in re.findall(r"\]\(([^)]+)\)", text):
            assert (ROOT / target).exists(), target


def test_commands_that_ci_runs_stand_in_the_readme():
    assert "./run.sh test all" in ENGLISH
    assert "./run.sh test all" in (ROOT / ".ci/run").read_text()
