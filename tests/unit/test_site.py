"""The site of docs/: built strictly and without a network; every link leads somewhere, here and on GitHub."""

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml
from command_cases import commands, understood

from launch import ROOT, LaunchError
from tools.pages import reference, sections
from tools.pages import site as pages

ENGLISH_ALONE = {"cli", "npu_ops"}  # written by programs; nav says so
OF_ROOT = ["README", "SECURITY", "CHANGELOG"]  # CONTRIBUTING has both languages in one file
DOCS = sorted(file for file in (ROOT / "docs").glob("*.md") if not file.name.endswith(".zh.md"))
TEXTS = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / f"{name}.md" for name in (*OF_ROOT, "CONTRIBUTING"))])
TEXTS += [ROOT / f"{name}.zh.md" for name in OF_ROOT]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


def prose(file: Path) -> str:
    """A page without its code."""
    return re.sub(r"^ *```.*?^ *```", "", file.read_text(), flags=re.M | re.DOTALL)


def anchors(file: Path) -> set[str]:
    return {pages.slug(heading) for heading in re.findall(r"^#+ (.*)$", prose(file), re.M)}


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: file.name)
def test_a_link_on_github_leads_somewhere(file: Path):
    for target in re.findall(r"\]\(([^()\s]+)\)", prose(file)):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        found = (file.parent / name).resolve() if name else file
        assert found.exists() and found.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(found), target


def test_every_page_has_its_twin_or_is_named():
    assert {file.stem for file in DOCS if not file.with_suffix(".zh.md").exists()} == ENGLISH_ALONE
    assert all((ROOT / f"{name}{end}").exists() for name in OF_ROOT for end in (".md", ".zh.md"))
    for file in DOCS:
        twin = file.with_suffix(".zh.md")
        assert not twin.exists() or (f"]({twin.name})" in file.read_text() and f"]({file.name})" in twin.read_text())


def test_nav_has_every_page_once_and_says_which_are_in_english_alone():
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    entries = [entry for part in settings["nav"] for group in part.values() for entry in group]
    named = {page: title for entry in entries for title, page in entry.items()}
    assert len(entries) == len(named)
    wanted = {f"{file.stem}.md" for file in DOCS} | {f"{page}.md" for page in pages.OF_ROOT.values()}
    assert set(named) == wanted
    assert {page for page, title in named.items() if "(English)" in title} == {f"{name}.md" for name in ENGLISH_ALONE}
    (languages,) = [plugin["i18n"]["languages"] for plugin in settings["plugins"] if "i18n" in plugin]
    translated = languages[1]["nav_translations"]
    assert {*named.values(), *(title for part in settings["nav"] for title in part)} == set(translated)


def test_a_link_of_the_site_leads_somewhere_and_nothing_comes_from_elsewhere(site: Path):
    texts = {file: file.read_text() for file in site.rglob("*.html")}
    names = {file: set(re.findall(r'\bid="([^"]+)"', text)) for file, text in texts.items()}
    checked = 0
    for file, text in texts.items():
        for tag, target in re.findall(r'<(a|link|script|img)\b[^>]*?\b(?:href|src)="?([^"\s>]+)"?', text):
            if re.match(r"(?:https?:)?//", target):
                assert tag == "a", f"{file.name} loads {target}"
                continue
            path, _, anchor = unquote(target).partition("#")
            found = (site / path[1:] if path.startswith("/") else file.parent / path).resolve() if path else file
            assert found.exists(), f"{file.name}: {target}"
            assert not anchor or anchor.startswith("__") or anchor in names[found], f"{file.name}: {target}"
            checked += 1
    assert checked > 1000


FOUND = {"docs/one.md": "one.md", "docs/two.zh.md": "two.zh.md", "README.md": "index.md", "docs/a.zh.svg": "a.zh.svg"}


@pytest.mark.parametrize(
    ("repository", "text", "made"),
    [
        (None, "[two](two.zh.md#x), [all](../README.md)", "[two](two.md#x), [all](index.md)"),
        (None, "![a](a.zh.svg) [there](https://example.org/x)", "![a](a.svg) [there](https://example.org/x)"),
        (None, "[the script](../run.sh)", "the script (`run.sh`)"),
        (None, "[gone](../gone.md)", "[gone](../gone.md)"),
        (None, "[run.sh](../run.sh)", "`run.sh`"),
        ("https://example.org/r", "[go](../run.sh#y)", "[go](https://example.org/r/blob/main/run.sh#y)"),
        (None, "[中文](one.zh.md). Made by `x`", "Made by `x`"),
        (None, "```\n[runs](../x.md)\n```", "```\n[runs](../x.md)\n```"),
        (None, "So:\n* a\n  b\n* c\n| x |\n|---|", "So:\n\n* a\n  b\n* c\n\n| x |\n|---|"),
    ],
)
def test_markdown_for_the_site(repository: str | None, text: str, made: str):
    assert pages.converted(text, "docs/one.md", FOUND, repository) == f"{made}\n"


def test_the_page_of_commands_is_their_help():
    assert reference.FILE.read_text() == reference.page(), "stale: run `python -m tools.pages`"


def test_the_table_of_recipes_is_theirs():
    for file, text in reference.with_tables().items():
        assert file.read_text() == text, "stale: run `python -m tools.pages`"


@pytest.mark.parametrize("text", ["", "<!-- by make -->\n| a |\n", "<!-- until here -->\n<!-- by make -->\n"])
def test_a_page_that_has_lost_a_mark_is_left_as_it_is(tmp_path: Path, text: str):
    (page := tmp_path / "page.md").write_text(text)
    with pytest.raises(LaunchError, match=rf"make: {re.escape(str(page))}"):
        sections.replaced(page, "make", "| b |\n")
    page.write_text("before\n<!-- by make -->\n| a |\n<!-- until here -->\nafter\n<!-- until here -->\n")
    wanted = page.read_text().replace("| a |", "| b |")
    assert sections.replaced(page, "make", "| b |\n") == wanted


OF_THE_SHELL = {"bench", "help", "lint", "setup", "test"}  # run.sh's own


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: file.name)
def test_every_command_of_ours_is_understood(file: Path):
    for words in commands(file.read_text()):
        if "./run.sh" in words:  # wherever another program starts it
            words = words[words.index("./run.sh") + 1 :]
            if words[0] not in OF_THE_SHELL:
                understood(words)
        elif words[:1] == ["ascend-quant"]:
            understood(words)
