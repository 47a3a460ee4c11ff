"""Makes torch_npu importable and puts npu:0 on host memory, before any test module imports torch."""

import os
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from npu_host import older_version, page

if find_spec("torch_npu") is None:  # another stack's environment: nothing here can run
    collect_ignore_glob = ["test_*.py"]
else:
    from npu_host import stubs

    stubs.start()

    import torch

    from npu_host import absent, device

    device.install()
    absent.stand_in(absent.LINEAR_ATTENTION)
    torch.npu.config.allow_internal_format = True  # as vllm-ascend's worker does


WAY = os.environ.get("NPU_OPS")  # at the end of a whole run: "write" the calls or "compare" them; else nothing


@pytest.fixture(autouse=True)
def no_allocator_asked_for():
    """vllm-ascend asks in its process for an allocator that the stubs do not have: no later child may inherit that."""
    yield
    os.environ.pop("PYTORCH_NPU_ALLOC_CONF", None)


def pytest_configure(config):
    if WAY not in (None, "", "write", "compare"):
        raise pytest.UsageError(f"NPU_OPS={WAY}: write or compare")
    if WAY and not older_version.is_there():
        raise pytest.UsageError(f"NPU_OPS={WAY} needs {older_version.VARIABLE}: see {older_version.__file__}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    if not WAY or exitstatus:
        return
    table, refused = _table_of_calls()
    if WAY == "write":
        page.write_calls(table)
    elif page.calls() != table:
        refused.append(f"{page.PAGE.name} is not what was called in this run; write it anew: {page.COMMAND}")
    for line in refused:
        session.config.get_terminal_writer().line(f"\n{line}", red=True)
    session.exitstatus = pytest.ExitCode.TESTS_FAILED if refused else exitstatus


def _table_of_calls() -> tuple[str, list[str]]:
    """The table, and a line for each call that torch_npu 2.7.1 should take and does not."""
    from npu_host import recorder

    with tempfile.TemporaryDirectory() as folder:
        calls = Path(folder) / "calls.json"
        recorder.write_calls(calls)
        older = older_version.verdicts(calls)
    versions = {"torch_npu 2.7.1": older, f"torch_npu {version('torch_npu')}": [""] * len(older)}
    refused = [
        f"torch_npu 2.7.1 does not take {call.operator} as {call.caller} calls it: {why}"
        for call, why in zip(recorder.calls.values(), older, strict=True)
        if why and call.caller and call.operator.startswith("npu::") and call.operator not in older_version.NEWER
    ]
    return recorder.table(page.COMMAND, versions), refused
