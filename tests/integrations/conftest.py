"""What the tests of the integrations have in common."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


@pytest.fixture(scope="session")
def avalanche() -> None:
    """Avalanche, imported; torchvision beside a CPU build of torch lacks two operators."""
    if find_spec("avalanche") is None:
        pytest.skip("Avalanche is not installed: make test-avalanche")
    if str(EXPERIMENTS) not in sys.path:
        sys.path.append(str(EXPERIMENTS))
    from avalanche_comparison import define_torchvision_operators

    define_torchvision_operators()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages that it imports
        import avalanche.training.supervised  # noqa: F401


@pytest.fixture
def quiet() -> Iterator[None]:
    """Avalanche warns at every experience of what it will remove, whatever the filters are."""
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("ignore")
        yield
