"""Every test of this folder is one for GPUs; with GPU_TESTS_ON=cpu trainings are tried on a CPU (trainings.py)."""

from pathlib import Path

import pytest
from trainings import ON_CPU


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == Path(__file__).parent and not ON_CPU:
            item.add_marker(pytest.mark.gpu)
