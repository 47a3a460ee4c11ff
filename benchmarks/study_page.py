"""python -m benchmarks.study_page: the table and the picture of docs/study.md and study.zh.md, from the last result.

The result is a study.json that `./run.sh study` wrote, kept as benchmarks/results/DATE-HARDWARE-study.json.
"""

import json
from pathlib import Path
from typing import Any

from launch.generated import is_chinese, put_between
from launch.study.report import COLUMNS, draw, markdown

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "study.md", ROOT / "docs" / "study.zh.md")
PICTURE = ROOT / "docs" / "study.png"
COLUMNS_CHINESE = ("lr", "rollout", "seed 数", "reward", "与 BF16 之差", "KL（k3）", "ESS", "自起点的更新：比例，余弦")
START, END = "<!-- study: written by python -m benchmarks.study_page -->", "<!-- end of study -->"


def result() -> Path:
    """The newest by its date."""
    return max((ROOT / "benchmarks" / "results").glob("*-study.json"))


def records() -> list[dict[str, Any]]:
    """Its cells."""
    return json.loads(result().read_text())["cells"]


def into(page: str) -> str:
    """A page with the table.

    Raises:
        ValueError: see `put_between`.
    """
    chinese = is_chinese(page, START, PAGES[0].name)
    lines = markdown(records(), COLUMNS_CHINESE if chinese else COLUMNS)
    return put_between(page, START, END, "".join(f"{line}\n" for line in lines))


def main() -> None:
    for page in PAGES:
        page.write_text(into(page.read_text()))
    draw(records(), PICTURE)


if __name__ == "__main__":
    main()
