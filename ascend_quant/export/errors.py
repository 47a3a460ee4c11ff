"""What cannot be exported."""


class ExportError(ValueError):
    """A checkpoint that cannot be exported; says which file or tensor, and what to do."""
