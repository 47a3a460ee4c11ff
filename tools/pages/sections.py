"""Generated sections of hand-written pages, between two markers."""

from pathlib import Path

from launch import LaunchError

END = "<!-- until here -->\n"


def mark(command: str) -> str:
    """Return the line before a generated section."""
    return f"<!-- by {command} -->\n"


def replaced(page: Path, command: str, section: str) -> str:
    """Return the text of a page with a command's section replaced.

    Raises:
        LaunchError: the page does not exist, or lacks a mark.
    """
    try:
        text = page.read_text()
    except OSError as why:
        raise LaunchError(f"{command} needs {page} of a repository checkout: {why.strerror}") from why
    before, begin, rest = text.partition(mark(command))
    _, end, after = rest.partition(END)
    if not end:
        raise LaunchError(f"{command}: {page} lacks a marker: {mark(command).strip()} or, after it, {END.strip()}")
    return f"{before}{begin}{section}{end}{after}"
