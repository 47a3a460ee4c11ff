"""The front door: both READMEs say the same on a screen or two; their figures are of pages and of measured.csv."""

import re
from itertools import product
from pathlib import Path

import pytest

from benchmarks.measured import one

ROOT = Path(__file__).parents[2]
LINES = 100
READMES = ("README.md", "README.zh.md")
TWINS = sorted(file.name.removesuffix(".zh.md") for file in (ROOT / "docs").glob("*.zh.md"))
PAIRS = [READMES, *((f"docs/{name}.md", f"docs/{name}.zh.md") for name in TWINS)]


def read(name: str) -> str:
    return (ROOT / name).read_text()


def commands(text: str) -> list[str]:
    """The lines of code without comments, which may be translated."""
    code = "".join(re.findall(r"```\w+\n(.*?)```", text, re.DOTALL))
    return [line for line in (line.partition("#")[0].rstrip() for line in code.splitlines()) if line]


@pytest.mark.parametrize("name", READMES)
def test_a_readme_fits_a_screen_or_two(name: str):
    assert len(read(name).splitlines()) <= LINES


@pytest.mark.parametrize("english, chinese", PAIRS)
def test_both_languages_have_the_same_code_and_headings(english: str, chinese: str):
    assert commands(read(english)) == commands(read(chinese))
    headings = [[len(marks) for marks in re.findall(r"^(#+) ", read(name), re.M)] for name in (english, chinese)]
    assert headings[0] == headings[1]


@pytest.mark.parametrize("english, chinese", PAIRS)
def test_tables_have_the_same_figures(english: str, chinese: str):
    def figures(text: str) -> list[list[str]]:
        rows = [re.findall(r"\d+(?:\.\d+)*", line) for line in text.splitlines() if line.startswith("|")]
        return [sorted(row) for row in rows]  # a sentence's order is its language's

    assert figures(read(english)) == figures(read(chinese))


@pytest.mark.parametrize("name", READMES)
def test_measured_figures_are_those_of_the_page_that_a_row_links(name: str):
    lines = [line.strip("| ").split(" | ") for line in read(name).splitlines() if line.startswith("| ")]
    rows = [row for row in lines if len(row) == 5 and "](docs/" in row[-1]]
    assert len(rows) == 6
    for what, _, *measured, link in rows:
        page = read(re.search(r"\(([^)]+)\)", link)[1])
        figures = [figure for cell in measured for figure in re.findall(r"\d[\d.,e-]*", cell)]
        assert len(figures) >= 2 and [figure for figure in figures if figure not in page] == [], what


@pytest.mark.parametrize("name", ["docs/first_day.md", "docs/first_day.zh.md"])
def test_demo_figures_are_those_of_the_run_in_the_picture(name: str):
    run, text = "2026-11-21-cpu-demo", read(name)
    columns = (
        ("reward of the first step", ".2f"),
        ("reward of the last five steps", ".3f"),
        ("mismatch KL (k3)", ".1e"),
        ("smallest effective sample size", ".4f"),
        ("weight sync", ".0f"),
        ("training step", ".1f"),
    )
    for arm in ("bf16", "int8"):
        cells = [format(one(figure, run=run, arm=arm).value, digits) for figure, digits in columns]
        assert f"| {' | '.join([arm, *cells])} |" in text
    seconds, memory = one("the whole demo", run=run), one("peak memory", run=run)
    for figure in (f"{seconds.value / 60:.1f}", f"{memory.value:.1f} GiB", seconds.hardware.partition(",")[0]):
        assert figure in text


@pytest.mark.parametrize("name", ["docs/nvidia.md", "docs/nvidia.zh.md"])
def test_rollouts_are_those_that_were_measured(name: str):
    names = {"qwen2.5-7b": "Qwen2.5-7B", "qwen2.5-32b": "Qwen2.5-32B", "qwen3-30b-a3b": "Qwen3-30B-A3B"}
    run = "2026-11-23-h200-x2-rollout"
    for model, batch in product(names, (64, 256)):
        schemes = ("bf16", "int8-vllm", "int8-ours")
        plain, theirs, ours = (one("rollout", run=run, model=model, batch=batch, scheme=s).value for s in schemes)
        cells = [f"{rate:,.0f} ({rate / plain:.2f})" for rate in (theirs, ours)]
        assert f"| {names[model]} | {batch} | {plain:,.0f} | {' | '.join(cells)} |" in read(name)


def test_commands_that_ci_runs_stand_in_the_readmes():
    assert all("./run.sh test" in read(name) for name in (*READMES, ".ci/run"))
