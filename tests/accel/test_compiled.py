"""Whether kernels can be compiled."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from ocar.accel import compiled


def test_where_nothing_can_be_compiled_it_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*arguments: object) -> None:
                raise RuntimeError("Failed to find C compiler.\nPlease specify")

            return launch

    def empty(*size: int, device: str) -> Tensor:
        assert device == "cuda"
        return Tensor(*size)

    trial = SimpleNamespace(fill=Failing())
    monkeypatch.setattr(compiled.importlib, "import_module", lambda name: trial)
    monkeypatch.setattr(torch, "empty", empty)
    compiled._compiles.cache_clear()
    try:
        with pytest.warns(UserWarning, match=r"cannot compile ours: Failed to find C compiler\.$"):
            assert not compiled._compiles()
        assert not compiled._compiles()
    finally:
        compiled._compiles.cache_clear()


def test_without_triton_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(compiled.importlib, "import_module", missing)
    compiled._compiles.cache_clear()
    compiled.kernels.cache_clear()
    try:
        assert compiled.kernels("ocar.accel.triton.norm") is None
    finally:
        compiled._compiles.cache_clear()
        compiled.kernels.cache_clear()
    assert not recwarn.list


def test_what_cannot_be_compiled_is_said_with_the_reason() -> None:
    def fail() -> None:
        raise RuntimeError("no such instruction\nand much more")

    with pytest.warns(UserWarning, match="^Factors take more .* ours: no such instruction$"):
        assert not compiled.compiles(fail, "Factors")
    assert compiled.compiles(lambda: None, "Factors")
