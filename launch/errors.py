"""What stops a launch with a message in place of a traceback."""


class LaunchError(RuntimeError):
    """A launch that cannot go on; each line of the message says what is wrong and what to do."""
