"""A fixed seed for every test here, and the helpers on the path."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
# The helpers import by plain name whatever pytest's import mode is.
sys.path[:0] = [str(path) for path in (HERE, HERE.parent) if str(path) not in sys.path]


@pytest.fixture(autouse=True)
def _fixed_seed() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
