"""What one module of engine tests must not leave to the next, and the processor that some ask for."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def default_dtype():
    """vLLM leaves a model's dtype as torch's default when it cannot build the model."""
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def no_amx(monkeypatch):
    """Engines of this process take a processor without AMX for granted: vLLM asks torch."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
