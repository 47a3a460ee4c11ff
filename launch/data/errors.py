"""What stops the preparation of data."""

from launch.errors import LaunchError


class DataError(LaunchError):
    """Data that cannot be had or used; one line that says which, and what to do."""
