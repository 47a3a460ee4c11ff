"""What one module of engine tests must not leave to the next."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def default_dtype():
    """vLLM leaves a model's dtype as torch's default when it cannot build the model."""
    torch.set_default_dtype(torch.float32)
