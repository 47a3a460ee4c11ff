"""The Chinese pages: full-width punctuation beside Chinese characters, one word a concept, comments in Chinese."""

import re
from pathlib import Path

import pytest

from launch.root import ROOT

PAGES = sorted([*ROOT.glob("*.zh.md"), *(ROOT / "docs").glob("*.zh.md")])
CHINESE = "\u4e00-\u9fff、。，；：（）！？《》“”"
BETWEEN = " *[]\ue000"  # what may stand between a mark and the character beside it; \ue000 is a piece of code
RETIRED = {  # what stands there instead
    "回执": "refit 记录",
    "失配": "训推不一致",
    "常驻": "引擎内的权重张量",
    "检查点": "checkpoint",
    "配方": "recipe（训练配方）",
    "(?<!位置)编码": "量化值",
    "摘要(?!值)": "摘要值（digest）",
    "训练侧": "训练端",
    "固定的?(?:版本|值)": "锁定版本",
    "按 ?token": "逐 token、token 级",
    "(?<!多头)潜在注意力": "多头潜在注意力（MLA）",
    "退出状态|以(?:状态)? ?\\d (?:结束|退出)": "退出码",
    "(?<=[\u4e00-\u9fff]) ?stack\\b(?!=)": "软件栈",
    "您": "你",
}


def split(page: str) -> tuple[list[str], list[str]]:
    """A page's lines without its code, and the comments of the code that is no Python."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page, re.M | re.DOTALL)
    shells = [text for language, text in blocks if language != "python"]
    comments = [found for block in shells for found in re.findall(r"(?:^| )# (.*)$", block, re.M)]
    prose = re.sub(r"^ *```.*?^ *```", "", page, flags=re.M | re.DOTALL)
    return prose.splitlines(), comments


def half_width(line: str) -> list[str]:
    """The half-width marks of a line that stand beside Chinese: each with what is around it."""
    line = re.sub(r"(?<=\])\([^()\s]+\)", "", re.sub(r"`[^`]*`", "\ue000", line)).replace("![", "[")
    found = []
    for cell in line.split("|"):
        for mark in re.finditer(r"[,;:()!?]", cell):
            before, after = cell[: mark.start()].rstrip(BETWEEN), cell[mark.end() :].lstrip(BETWEEN)
            if re.search(f"[{CHINESE}]$", before) or re.match(f"[{CHINESE}]", after):
                found.append(cell[max(0, mark.start() - 10) : mark.end() + 10])
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_punctuation_beside_chinese_is_full_width(page: Path):
    prose, comments = split(page.read_text())
    assert not [found for line in (*prose, *comments) for found in half_width(line)]


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("一个，两个（三个）：`a, b`。", 0),
        ("一个,两个(三个):四", 4),
        ("用 `a`, `b` 启动", 1),
        ("见[这里](a.md);**另见**", 1),
        ("| `a`, `b` | 一个 |", 0),
        ("一个 vLLM 0.23, CPU", 0),
        ("![图](a.png)", 0),
    ],
)
def test_half_width_marks_are_found(line: str, count: int):
    assert len(half_width(line)) == count


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_retired_words_are_gone(page: Path):
    prose, comments = split(page.read_text().replace("recipe（训练配方）", ""))
    text = "\n".join(re.sub(r"`[^`]*`|\]\([^()\s]+\)", "", line) for line in (*prose, *comments))
    assert {
        word: found for word, found in ((word, re.findall(f".*?{word}.*", text)) for word in RETIRED) if found
    } == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_comments_are_in_chinese(page: Path):
    _, comments = split(page.read_text())
    assert not [comment for comment in comments if not re.search(f"[{CHINESE}]", comment)]
