"""The FLASHRL_* variables, and the logging that two of them set up."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from naming import has_line_naming, line_naming

from ascend_quant.flashrl.variables import LEVELS, LOGGER, NAMES, VariableError, Variables, from_environment, set_up


@pytest.fixture
def logger():
    """Our logger without a level and handlers, as in a fresh process, and put back afterwards."""
    logger = logging.getLogger(LOGGER)
    level, handlers = logger.level, logger.handlers[:]
    logger.setLevel(logging.NOTSET)
    logger.handlers = []
    yield logger
    for handler in logger.handlers:
        handler.close()
    logger.setLevel(level)
    logger.handlers = handlers


def test_each_variable():
    assert from_environment({"PATH": "/bin", "VLLM_USE_V1": "1"}) == Variables()
    variables = from_environment(
        {
            "FLASHRL_CONFIG": " int8 ",
            "FLASHRL_LOGGING_LEVEL": "debug",
            "FLASHRL_LOGGING_FILE": "/tmp/log",
            "FLASHRL_LMHEAD_FP32": "1",
            "FLASHRL_TEST_RELOAD": "0",
        }
    )
    assert variables == Variables("int8", "DEBUG", Path("/tmp/log"), True, False)
    (line,) = from_environment({"SGLANG_PATCH": "1"}).disregarded
    assert has_line_naming(line, "SGLANG_PATCH='1'")


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("FLASHRL_LOGGING_LEVEL", "LOUD", LEVELS),
        ("FLASHRL_LMHEAD_FP32", "true", "01"),
        ("FLASHRL_LMHEAD_FP32", "1" * 5000, "01"),
        ("FLASHRL_TEST_RELOAD", "owner/model,owner/other", "01"),
        *((name, " ", ["empty"]) for name in NAMES.values()),
        ("FLASHRL_CONFG", "int8", NAMES.values()),
    ],
)
def test_a_wrong_value_or_name_lists_the_valid_ones(name, value, named):
    with pytest.raises(VariableError) as error:
        from_environment({name: value})
    assert all(part in str(error.value) for part in [name, *named]) and len(str(error.value)) < 1000


def test_lines_reach_the_file_once_and_a_level_of_somebody_before_us_holds(logger, tmp_path):
    variables = Variables(logging_file=tmp_path / "log")
    for _ in range(2):
        set_up(variables)
    logging.getLogger("ascend_quant.refit").info("receipt")
    logging.getLogger("ascend_quant.refit").debug("detail")
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert has_line_naming(line, "ascend_quant.refit", "INFO", "receipt")
    logger.setLevel(logging.ERROR)
    for given, level in ((Variables(), logging.ERROR), (Variables(logging_level="DEBUG"), logging.DEBUG)):
        set_up(given)
        assert logger.level == level
    with pytest.raises(VariableError, match=line_naming("FLASHRL_LOGGING_FILE", "absent/log")):
        set_up(Variables(logging_file=tmp_path / "absent" / "log"))


SHOWN = """
import logging, sys
from ascend_quant.flashrl import variables
if sys.argv[1] == "handled":  # as vLLM's handler is: on our logger, from INFO on
    handler = logging.StreamHandler()
    handler.setLevel(logging.INFO)
    logging.getLogger("ascend_quant").addHandler(handler)
variables.set_up(variables.from_environment({"FLASHRL_LOGGING_LEVEL": "DEBUG"}))
logging.getLogger("ascend_quant.refit").info("receipt")
logging.getLogger("ascend_quant.refit").debug("detail")
"""


@pytest.mark.parametrize("handled", ["handled", "alone"])
def test_each_line_is_shown_once(handled):
    command = [sys.executable, "-c", SHOWN, handled]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
    assert [line.split()[-1] for line in shown] == ["receipt", "detail"]


def test_reading_variables_needs_the_standard_library_alone():
    code = (
        "import sys, ascend_quant.flashrl.variables, ascend_quant.flashrl.functions\n"
        "print([m for m in ('torch', 'vllm', 'pydantic', 'yaml', 'typer', 'huggingface_hub') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
