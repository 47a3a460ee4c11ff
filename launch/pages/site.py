"""The hook of mkdocs.

The site is built not of docs/ itself, but of a copy of it beside the pages of the repository's root, with the site's
own links, and blank lines where GitHub needs none: one text serves both. On GitHub a link names a file
(`../benchmarks/results/x.md`, `install.zh.md`). Here it becomes the page in the reader's language; where the site has
none, the file's address below `repo_url`; without one, its path.
"""

import posixpath
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig

sys.path.insert(0, str(Path(__file__).parents[2]))  # mkdocs starts a hook by its path

from launch import ROOT

OF_ROOT = {"README": "index", "SECURITY": "security", "CHANGELOG": "changelog", "CONTRIBUTING": "contributing"}
FENCE = re.compile(r"^ *```")
ITEM = re.compile(r"^(\*|-|\d+\.) ")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^()\s]+)\)")
LANGUAGES = re.compile(r"\[(?:中文|English)\]\([^()\s]+\)[.。]? ?")  # the site's header has them
COPY = tempfile.TemporaryDirectory(prefix="ascend-quant-docs-")  # until mkdocs ends


def on_config(config: MkDocsConfig) -> None:
    """Make the copy. Anchors are GitHub's, in Chinese too."""
    write(Path(COPY.name), config.repo_url)
    config.docs_dir = COPY.name
    config.mdx_configs["toc"] = {"slugify": slug}


def slug(heading: str, space: str = "-") -> str:
    """Return a heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", space)


def sources() -> dict[str, str]:
    """Return the repository's files that the site has, and where: docs/, pages of the root, pictures that they show."""
    docs = [file for file in (ROOT / "docs").rglob("*") if file.is_file()]
    found = {str(file.relative_to(ROOT)): str(file.relative_to(ROOT / "docs")) for file in docs}
    for name, page in OF_ROOT.items():
        found |= {f"{name}{end}": f"{page}{end}" for end in (".md", ".zh.md") if (ROOT / f"{name}{end}").exists()}
    texts = [(ROOT / path).read_text() for path in found if path.endswith(".md")]
    shown = {path for text in texts for path in re.findall(r"!\[[^\]]*\]\(\.\./([^()]+)\)", text)}
    return found | {path: path for path in shown}


def write(folder: Path, repository: str | None) -> None:
    """Write all pages of the site into a folder.

    Args:
        repository: its address, without a slash at the end.
    """
    found = sources()
    for path, place in found.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if place.endswith(".md"):
            target.write_text(converted((ROOT / path).read_text(), path, found, repository))
        else:
            shutil.copyfile(ROOT / path, target)


def converted(text: str, path: str, found: Mapping[str, str], repository: str | None) -> str:
    """Convert a page at a path of the repository to the site's Markdown.

    Args:
        found: see `sources`.
    """
    lines, code = [], False
    for line in _apart(text):
        code ^= bool(FENCE.match(line))
        if not code:
            line = LANGUAGES.sub("", line)
            line = LINK.sub(lambda link: _link(link, path, found, repository), line)
        lines.append(line)
    return "\n".join(lines) + "\n"


def _link(link: re.Match[str], path: str, found: Mapping[str, str], repository: str | None) -> str:
    shown, text, target = link.groups()
    if re.match(r"#|\w+:", target):
        return link[0]
    name, mark, anchor = target.partition("#")
    file = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
    if place := found.get(file):
        here = posixpath.dirname(found[path])
        place = re.sub(r"\.zh(?=\.\w+$)", "", place)  # the site finds a language's own
        return f"{shown}[{text}]({posixpath.relpath(place, here or '.')}{mark}{anchor})"
    if not (ROOT / file).exists():
        return link[0]  # mkdocs says so
    if repository:
        return f"[{text}]({repository}/blob/main/{file}{mark}{anchor})"
    return f"`{file}`" if text.endswith(file) else f"{text} (`{file}`)"


def _apart(text: str) -> Iterator[str]:
    """Yield lines, with a blank one before a list or a table that follows a paragraph at once."""
    before, code, listed = "", False, False
    for line in text.splitlines():
        item, row = bool(ITEM.match(line)), line.startswith("|")
        begins = (item and not listed) or (row and not before.startswith("|"))
        if begins and not code and before.strip():
            yield ""
        yield line
        code ^= bool(FENCE.match(line))
        listed = item or (listed and bool(line.strip()))
        before = line
