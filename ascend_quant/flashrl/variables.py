"""FlashRL's environment variables: their valid values and effects.

A variable that is set must be valid: an empty one is an error, since it may come from a misspelt `$NAME`.

FLASHRL_LOGGING_LEVEL and FLASHRL_LOGGING_FILE act on this package's logger; FlashRL's take the root logger. In a vLLM
process, log records go to vLLM's handlers. Records that no handler shows (outside vLLM, or below vLLM's level) go to
stderr, so each is shown exactly once.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PREFIX = "FLASHRL_"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
LOGGER = "ascend_quant"
FORMAT = "%(asctime)s - %(name)s - %(levelname)s - %(message)s"
SHOW_NOTHING = (logging.FileHandler, logging.NullHandler)


class VariableError(ValueError):
    """Raised if an environment variable is unknown or has an invalid value; the message lists the valid ones."""


@dataclass(frozen=True)
class Variables:
    """The values of FlashRL's environment variables.

    Attributes:
        config: argument of `ascend_quant.flashrl.config.resolve`; None: FlashRL's workflow is not used.
        logging_level: one of `LEVELS`; None: not set, which for FlashRL is INFO.
        logging_file: file to which log lines are also appended.
        lm_head_fp32: whether to compute the lm_head in float32.
        test_reload: whether to reload the weights after start, and compare.
        disregarded: a line for each FlashRL variable that has no effect here.
    """

    config: str | None = None
    logging_level: str | None = None
    logging_file: Path | None = None
    lm_head_fp32: bool = False
    test_reload: bool = False
    disregarded: tuple[str, ...] = ()


NAMES = {  # by the fields of `Variables`
    "config": "FLASHRL_CONFIG",
    "logging_level": "FLASHRL_LOGGING_LEVEL",
    "logging_file": "FLASHRL_LOGGING_FILE",
    "lm_head_fp32": "FLASHRL_LMHEAD_FP32",
    "test_reload": "FLASHRL_TEST_RELOAD",  # FlashRL's list of models is ignored: the engine's own model is reloaded
}
SWITCH = {"0": False, "1": True}
CHOICES = {"logging_level": {level: level for level in LEVELS}, "lm_head_fp32": SWITCH, "test_reload": SWITCH}
NOTHING_HERE = {"SGLANG_PATCH": "FlashRL then patches SGLang; this project serves with vLLM"}


def from_environment(environment: Mapping[str, str]) -> Variables:
    """Read FlashRL's variables from `environment` (os.environ).

    Raises:
        VariableError: a value is invalid, or a variable with FlashRL's prefix is unknown.
    """
    for name in environment:
        if name.startswith(PREFIX) and name not in NAMES.values():
            raise VariableError(f"unknown environment variable {name:.80}; known: {', '.join(NAMES.values())}")
    values = {field: _value(field, environment[name]) for field, name in NAMES.items() if name in environment}
    lines = [f"{name}={environment[name]!r}: {why}" for name, why in NOTHING_HERE.items() if name in environment]
    return Variables(**values, disregarded=tuple(lines))


def _value(field: str, given: str) -> object:
    """Return the value of one field of `Variables`."""
    if not (text := given.strip()):
        raise VariableError(f"{NAMES[field]} is set but empty: give a value, or unset it")
    if field not in CHOICES:
        return Path(os.path.expanduser(text)) if field == "logging_file" else text
    if text.upper() not in CHOICES[field]:
        raise VariableError(f"{NAMES[field]}={given!r:.200}: valid values: {', '.join(CHOICES[field])}")
    return CHOICES[field][text.upper()]


class Remainder(logging.StreamHandler):
    """Writes to stderr the records that no other handler of this logger or its parents shows."""

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
    """Configure logging from the variables, by default from INFO on; idempotent.

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
    """Set the handler's format to time, logger and level in each line."""
    handler.setFormatter(logging.Formatter(FORMAT))
    return handler


def writes_to(logger: logging.Logger, file: Path) -> bool:
    """Return whether the logger appends to `file` already."""
    files = [handler.baseFilename for handler in logger.handlers if isinstance(handler, logging.FileHandler)]
    return str(file.absolute()) in files
