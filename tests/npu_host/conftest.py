"""Makes torch_npu importable and puts npu:0 on host memory, before any test module imports torch."""

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from npu_host import older_version

if find_spec("torch_npu") is None:  # another stack's environment: nothing here can run
    collect_ignore_glob = ["test_*.py"]
else:
    from npu_host import stubs

    stubs.start()

    import torch

    from npu_host import device

    device.install()
    torch.npu.config.allow_internal_format = True  # as vllm-ascend's worker does


def pytest_addoption(parser):
    parser.addoption(
        "--npu-ops-table", type=Path, help="write the table of NPU operator calls here (docs/npu_ops.md), at the end"
    )


def pytest_configure(config):
    if config.getoption("--npu-ops-table", default=None) and not older_version.is_there():
        raise pytest.UsageError(f"--npu-ops-table needs {older_version.VARIABLE}: see {older_version.__file__}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    table = session.config.getoption("--npu-ops-table", default=None)
    if table is None or exitstatus:
        return
    from npu_host import recorder

    calls = table.with_suffix(".calls.json")
    recorder.write_calls(calls)
    replayed = {
        "torch_npu 2.7.1": older_version.verdicts(calls),
        f"torch_npu {version('torch_npu')}": [""] * len(recorder.calls),
    }
    calls.unlink()
    recorder.write_table(table, "./run.sh test npu -- --npu-ops-table docs/npu_ops.md", replayed)
