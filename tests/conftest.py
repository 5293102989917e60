"""What holds for all tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# The helpers of the tests import by plain name whatever pytest's import mode is.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

# A busy machine is not a failure.
settings.register_profile("ocar", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ocar")


@pytest.fixture
def double() -> Iterator[None]:
    """Double precision by default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
