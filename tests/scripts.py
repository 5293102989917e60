"""Scripts of the examples and the experiments, which are no part of the package, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
"""The checkout."""


def load_script(name: str) -> ModuleType:
    """A script by its path in the checkout; what stands under ``__main__`` is not run."""
    path = ROOT / name
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call_script(module: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """Its ``main`` with these words on the command line."""
    monkeypatch.setattr(sys, "argv", [f"{module.__name__}.py", *arguments])
    module.main()
