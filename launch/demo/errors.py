"""What ends a demo with a message instead of a traceback."""


class DemoError(RuntimeError):
    """A run that cannot go on; the message says what happened and what to do or where to read on."""
