"""What cannot be converted."""


class ConvertError(ValueError):
    """A checkpoint, a folder or a request that cannot be converted; says which and what to do."""
