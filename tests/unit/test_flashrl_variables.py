"""The FLASHRL_* variables, and the logging that two of them set up."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from naming import line_naming

from ascend_quant.flashrl import logs
from ascend_quant.flashrl.variables import LEVELS, TABLE, VariableError, Variables, from_environment


@pytest.fixture
def logger():
    """Our logger without a level and handlers, as in a fresh process, and put back afterwards."""
    logger = logging.getLogger(logs.LOGGER)
    level, handlers = logger.level, logger.handlers[:]
    logger.setLevel(logging.NOTSET)
    logger.handlers = []
    yield logger
    for handler in logger.handlers:
        handler.close()
    logger.setLevel(level)
    logger.handlers = handlers


def test_nothing_is_on_by_default():
    assert from_environment({"PATH": "/bin", "VLLM_USE_V1": "1"}) == Variables()


def test_each_variable():
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


@pytest.mark.parametrize(
    ("name", "value", "valid"),
    [
        ("FLASHRL_LOGGING_LEVEL", "LOUD", LEVELS),
        ("FLASHRL_LMHEAD_FP32", "true", "01"),
        ("FLASHRL_TEST_RELOAD", "2", "01"),
        ("FLASHRL_TEST_RELOAD", "owner/model,owner/other", ["0, 1", "FlashRL's list of models"]),
    ],
)
def test_a_wrong_value_lists_the_valid_ones(name, value, valid):
    with pytest.raises(VariableError) as error:
        from_environment({name: value})
    assert all(part in str(error.value) for part in [f"{name}={value!r}", *valid])


@pytest.mark.parametrize("variable", TABLE, ids=lambda variable: variable.name)
def test_an_empty_value_is_not_off(variable):
    with pytest.raises(VariableError, match=line_naming(variable.name, "empty")):
        from_environment({variable.name: " "})


def test_values_of_any_length_and_homes_of_nobody():
    assert str(from_environment({"FLASHRL_LOGGING_FILE": "~nobody-here/log"}).logging_file) == "~nobody-here/log"
    for name, value in (("FLASHRL_LMHEAD_FP32", "1" * 5000), ("FLASHRL_" + "X" * 5000, "1")):
        with pytest.raises(VariableError) as error:
            from_environment({name: value})
        assert len(str(error.value)) < 1000


def test_an_unknown_variable_lists_the_known_ones():
    with pytest.raises(VariableError) as error:
        from_environment({"FLASHRL_CONFG": "int8"})
    assert "FLASHRL_CONFG; did you mean FLASHRL_CONFIG?" in str(error.value)
    assert all(variable.name in str(error.value) for variable in TABLE)


def test_a_variable_that_does_nothing_here_is_named():
    (line,) = from_environment({"SGLANG_PATCH": "1"}).disregarded
    assert line.startswith("SGLANG_PATCH='1'")


def test_lines_reach_the_file_once_though_set_up_twice(logger, tmp_path):
    variables = Variables(logging_file=tmp_path / "log")
    logs.set_up(variables)
    logs.set_up(variables)
    logging.getLogger("ascend_quant.refit").info("receipt")
    logging.getLogger("ascend_quant.refit").debug("detail")
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert line.endswith("ascend_quant.refit - INFO - receipt")


def test_the_level_of_somebody_before_us_holds_unless_a_variable_says_otherwise(logger):
    logger.setLevel(logging.ERROR)
    logs.set_up(Variables())
    assert logger.level == logging.ERROR
    logs.set_up(Variables(logging_level="DEBUG"))
    assert logger.level == logging.DEBUG


def test_a_file_that_cannot_be_written(logger, tmp_path):
    with pytest.raises(VariableError, match=r"FLASHRL_LOGGING_FILE='.*absent/log' cannot be written"):
        logs.set_up(Variables(logging_file=tmp_path / "absent" / "log"))


SHOWN = """
import logging, sys
from ascend_quant.flashrl import logs, variables
if sys.argv[1] == "handled":  # as vLLM's handler is: on our logger, from INFO on
    handler = logging.StreamHandler()
    handler.setLevel(logging.INFO)
    logging.getLogger("ascend_quant").addHandler(handler)
logs.set_up(variables.from_environment({"FLASHRL_LOGGING_LEVEL": "DEBUG"}))
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
        "import sys, ascend_quant.flashrl.logs, ascend_quant.flashrl.functions\n"
        "print([m for m in ('torch', 'vllm', 'pydantic', 'yaml', 'typer', 'huggingface_hub') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
