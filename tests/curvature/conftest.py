"""Double precision and a fixed seed for every test here, and the helpers on the path."""

import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
# The helpers import by plain name whatever pytest's import mode is.
sys.path[:0] = [str(path) for path in (HERE, HERE.parent) if str(path) not in sys.path]


@pytest.fixture(autouse=True)
def _seeded(double: None) -> None:
    torch.manual_seed(0)
