"""The part of a page that a program writes, between two comments."""


def is_chinese(page: str, start: str, english: str) -> bool:
    """Whether a page links the English one, of this file name, above the comment: as each does at its top."""
    return f"]({english})" in page.partition(start)[0]


def put_between(page: str, start: str, end: str, text: str) -> str:
    """A page with this text, of whole lines, between the comments.

    Raises:
        ValueError: a comment is missing, so that there is no telling where it goes.
    """
    before, found, rest = page.partition(start)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the page needs {start} and {end}, each in a line of its own")
    return f"{before}{start}\n{text}{end}{after}"
