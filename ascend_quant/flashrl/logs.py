"""FLASHRL_LOGGING_LEVEL and FLASHRL_LOGGING_FILE at work, on this package's logger; FlashRL's take the root logger.

In a vLLM process our lines go where vLLM's own go. What nobody shows (all lines elsewhere, and lines below vLLM's
level) goes to stderr, so that no line is lost and none is shown twice.
"""

import logging
from pathlib import Path

from ascend_quant.flashrl.variables import VariableError, Variables

LOGGER = "ascend_quant"
FORMAT = "%(asctime)s - %(name)s - %(levelname)s - %(message)s"
SHOW_NOTHING = (logging.FileHandler, logging.NullHandler)


class Remainder(logging.StreamHandler):
    """Writes the lines to stderr that no other handler of our logger, or of its parents, shows."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not self._is_shown(record) and super().filter(record)

    def _is_shown(self, record: logging.LogRecord) -> bool:
        logger: logging.Logger | None = logging.getLogger(LOGGER)
        while logger is not None:
            for handler in logger.handlers:
                if handler is not self and not isinstance(handler, SHOW_NOTHING) and record.levelno >= handler.level:
                    return True
            logger = logger.parent if logger.propagate else None
        return False


def set_up(variables: Variables) -> None:
    """Log as the variables say, from INFO on unless they or somebody before us said otherwise; harmless when repeated.

    Raises:
        VariableError: the file cannot be written.
    """
    logger = logging.getLogger(LOGGER)
    if variables.logging_level or logger.level == logging.NOTSET:
        logger.setLevel(variables.logging_level or logging.INFO)
    if not any(isinstance(handler, Remainder) for handler in logger.handlers):
        logger.addHandler(formatted(Remainder()))
    file = variables.logging_file
    if file is not None and not writes_to(logger, file):
        try:
            logger.addHandler(formatted(logging.FileHandler(file, encoding="utf-8")))
        except OSError as error:
            raise VariableError(f"FLASHRL_LOGGING_FILE={str(file)!r:.200} cannot be written: {error}") from error


def formatted(handler: logging.Handler) -> logging.Handler:
    """The handler, with time, logger and level in each line."""
    handler.setFormatter(logging.Formatter(FORMAT))
    return handler


def writes_to(logger: logging.Logger, file: Path) -> bool:
    """Whether the logger appends to `file` already."""
    files = [handler.baseFilename for handler in logger.handlers if isinstance(handler, logging.FileHandler)]
    return str(file.absolute()) in files
