"""The table of NPU probes in docs/ascend.md and docs/ascend.zh.md, from JSON files of `./run.sh smoke`.

`python -m tools.pages.npu_probes FILE ..` writes it into both pages; without files, as if no device has run a probe.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from ascend_quant.files.documents import BadDocument
from ascend_quant.smoke.reading import Read, read, rows
from launch import ROOT, LaunchError
from tools.pages.sections import replaced

COMMAND = "python -m tools.pages.npu_probes"
PAGES = {  # the heading of the table, and the text before it
    "docs/ascend.md": (
        "| probe | on a device | seen |",
        "None of these probes has been run on a device yet.",
        "Read from: {}.",
    ),
    "docs/ascend.zh.md": ("| 探测 | 在设备上 | 所见 |", "还没有设备运行过其中任何一项。", "取自：{}。"),
}


def table(page: str, files: Sequence[Read]) -> str:
    """Return the section of a page, in Markdown."""
    head, nothing, read_from = PAGES[page]
    told = read_from.format("; ".join(one.about for one in files)) if files else nothing
    lines = [f"| `{name}` | {status} | {seen.replace('|', '/')} |" for name, status, seen in rows(files)]
    return "\n".join([told, "", head, "|---|---|---|", *lines, ""])


def main(files: Sequence[str], root: Path = ROOT) -> None:
    """Write the table of these files into the pages below a folder.

    Raises:
        BadDocument: a file cannot be read.
        LaunchError: a page lacks its marks. No page is changed.
    """
    found = [read(Path(file)) for file in files]
    pages = {root / page: replaced(root / page, COMMAND, table(page, found)) for page in PAGES}
    for page, text in pages.items():
        page.write_text(text)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (BadDocument, LaunchError) as why:
        sys.exit(str(why))
